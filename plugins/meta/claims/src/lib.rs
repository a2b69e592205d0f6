//! The `claims` CNI plugin: the pod gets the devices that it has by claims of Dynamic Resource Allocation (DRA), behind the plugins of
//! its network.
//!
//! [`config`] decodes the keys, [`pod`] finds the records of the pod, and [`plan`] says which plugins make an interface of each device:
//! `host-device`, `macvlan`, `ipvlan` or `vlan`, and those that follow them. [`device`] names the device for them, and
//! [`calls`] calls them. [`add`], [`del`] and [`check`] hold the steps of the verbs. [`file`](mod@file) is what ADD has made, until DEL.

#![deny(missing_docs)]

pub mod add;
pub mod calls;
pub mod check;
pub mod config;
pub mod del;
pub mod device;
pub mod file;
pub mod plan;
pub mod pod;

use cni_common::plugin::Plugin;
use cni_common::spec::SpecVersion;

/// The plugin's name.
pub const NAME: &str = "claims";

/// The plugin. Before 0.3.0 a result has one interface.
pub const PLUGIN: Plugin = Plugin {
    spec_versions: SpecVersion::CHAINED,
    check: check::check,
    repair: Some(check::repair),
    gc: del::gc,
    status: check::status,
    ..Plugin::new(NAME, add::add, del::del)
};

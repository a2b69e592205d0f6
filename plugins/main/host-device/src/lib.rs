//! The `host-device` CNI plugin: moves a device of the node into the container, and gives it back.
//!
//! [`config`] decodes the configuration, and [`find`] looks the device up.
//! [`state`] is the file with the state that the device gets back, [`identity`] tells the device from links that a container
//! has made, [`search`] finds it, and [`transfer`] moves it in both directions.
//! [`own_network`] is the key `useInterfaceNetwork`; [`vf_conf`] and [`vf`] are the keys of a virtual function.
//! [`add`], [`check`] and [`remove`] hold the steps of the verbs.

#![deny(missing_docs)]

pub mod add;
pub mod check;
pub mod config;
pub mod find;
pub mod identity;
pub mod own_network;
pub mod remove;
pub mod search;
pub mod state;
pub mod transfer;
pub mod vf;
pub mod vf_conf;

use cni_common::plugin::{Plugin, StatusRequest};
use cni_common::spec::CniError;
use ferrule_kit::ipam;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    check: check::check,
    repair: Some(check::repair),
    gc: remove::gc,
    status,
    ..Plugin::new("host-device", add::add, remove::del)
};

/// Checks that the configuration is valid, that the device exists or is in a container, and that IPAM is ready.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    find::status(call.config)?;
    ipam::status(call)
}

//! The `bandwidth` CNI plugin: limits the traffic to and from a container, behind any plugin that gives it a
//! veth.
//!
//! Traffic to the container is shaped by a qdisc on the host's veth. Traffic from the container is redirected
//! to an IFB and shaped there. [`config`] decodes the limits, [`shape`] computes the kernel's parameters,
//! [`owner`] tells which attachment an IFB belongs to, and [`plan`] decides what ADD does; these four do not
//! touch the kernel. [`state`] reads the kernel's state. [`add`], [`check`], [`repair`],
//! [`del`], [`gc`] and [`status`] hold the steps of each verb. [`change`] gives a running container the other
//! rates of [`rates`].

pub mod config;
pub mod owner;
pub mod plan;
pub mod rates;
pub mod shape;

pub mod add;
pub mod change;
pub mod check;
pub mod del;
pub mod gc;
pub mod repair;
pub mod state;
pub mod status;

use cni_common::plugin::{Plugin, StatusRequest};
use cni_common::spec::{CniError, SpecVersion};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    // Versions before 0.3.0 have neither chains nor interfaces in results.
    spec_versions: SpecVersion::CHAINED,
    check: check::check,
    repair: Some(repair::repair),
    gc: gc::gc,
    status,
    ..Plugin::new("bandwidth", add::add, del::del)
};

fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    config::Conf::read(call.config)?;
    status::status()
}

//! The `ptp` CNI plugin: a veth or netkit pair between the container and the node, which is the container's gateway. There
//! is no bridge: the node has a route to each container.
//!
//! [`config`] decodes the configuration, and [`plan`] combines it with the addresses from IPAM; neither touches the
//! kernel. [`add`], [`check`] and [`repair`] hold the steps of these verbs; [`neighbours`] is for nodes that answer no ARP requests for
//! the gateway; `ferrule-kit` has the rest.

#![deny(missing_docs)]

pub mod add;
pub mod check;
pub mod config;
pub mod neighbours;
pub mod plan;
pub mod repair;

use cni_common::plugin::{DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::CniError;
use ferrule_kit::ipam;
use ferrule_masquerade::{self as masquerade, detach};

use config::Conf;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    check: check::check,
    repair: Some(repair::repair),
    gc,
    status,
    ..Plugin::new("ptp", add::add, del)
};

fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    detach::del(call, |_, _| Ok(()))
}

fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    detach::gc(call, |_, _| Ok(()))
}

/// Checks that the configuration is valid, that the node can masquerade, and that IPAM is ready.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    conf.masquerade.as_ref().map_or(Ok(()), masquerade::status)?;
    ipam::status(call)
}

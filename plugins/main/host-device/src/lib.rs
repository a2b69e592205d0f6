//! The `host-device` CNI plugin: moves a device of the node into the container, and gives it back.
//!
//! [`config`] decodes the configuration, and [`find`] looks the device up.
//! [`state`] is the file with the state that the device gets back, [`identity`] tells the device from links that a container
//! has made, [`search`] finds it, and [`transfer`] moves it in both directions.
//! [`own_network`] is the key `useInterfaceNetwork`, [`claims`] the key `claims`; [`vf_conf`] and [`vf`] are the keys of a virtual function.
//! [`add`], [`check`] and [`remove`] hold the steps of the verbs.

#![deny(missing_docs)]

pub mod add;
pub mod check;
pub mod claims;
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

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError};
use ferrule_kit::ipam;

/// The plugin.
pub const PLUGIN: Plugin =
    Plugin { check, repair: Some(repair), gc, status, ..Plugin::new("host-device", add, del) };

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    if claims::is_on(call.config)? { claims::add::add(call) } else { add::add(call) }
}

fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    if claims::is_on(call.config)? { claims::verbs::check(call) } else { check::check(call) }
}

fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    if claims::is_on(call.config)? { claims::verbs::repair(call) } else { check::repair(call) }
}

/// A configuration that cannot be decoded may be one with claims, whose DEL does nothing without a file.
fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    if claims::is_on(call.config).unwrap_or(true) { claims::del::del(call) } else { remove::del(call) }
}

fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    if claims::is_on(call.config)? { claims::del::gc(call) } else { remove::gc(call) }
}

/// Checks that the configuration is valid, that the device exists or is in a container, and that IPAM is ready.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    if claims::is_on(call.config)? {
        return claims::verbs::status(call);
    }
    find::status(call.config)?;
    ipam::status(call)
}

//! The `host-device` CNI plugin: moves a device of the node into the container, and gives it back.
//!
//! [`config`] decodes the configuration, and [`find`] looks the device up.
//! [`record`] is the file with the state that the device gets back, [`identity`] tells the device from links that a container
//! has made, [`search`] finds it, and [`transfer`] moves it in both directions.
//! [`own_network`] is the key `useInterfaceNetwork`. [`add`], [`check`] and [`remove`] hold the steps of the verbs.

#![deny(missing_docs)]

pub mod add;
pub mod check;
pub mod config;
pub mod find;
pub mod identity;
pub mod own_network;
pub mod record;
pub mod remove;
pub mod search;
pub mod transfer;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError};
use ferrule_kit::ipam;

/// The plugin.
pub struct HostDevice;

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        "host-device"
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        add::add(call)
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        check::check(call)
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        remove::del(call)
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        remove::gc(call)
    }

    /// Checks that the configuration is valid, that the device exists or is in a container, and that IPAM is ready.
    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        find::status(call.config)?;
        ipam::status(call)
    }
}

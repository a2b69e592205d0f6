//! The `bridge` CNI plugin: a veth pair between the container and a Linux bridge on the host.
//!
//! [`config`] decodes the configuration, and [`plan`] combines it with the addresses from IPAM; neither
//! touches the kernel. [`add`] and [`check`] hold the steps of these verbs. [`device`] is the
//! bridge; `ferrule-kit` has the rest.

#![deny(missing_docs)]

pub mod add;
pub mod check;
pub mod config;
pub mod device;
pub mod plan;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code};
use ferrule_kit::{detach, ipam, masquerade, socket};

use config::Conf;

/// The plugin.
pub struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        add::add(call)
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        check::check(call)
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        detach::del(call)
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        detach::gc(call)
    }

    /// Checks that the configuration is valid, that no other kind of link has the bridge's name, that the
    /// kernel can masquerade, and that IPAM is ready.
    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        let conf = Conf::read(call.config, "")?;
        let found = socket::route().and_then(|mut socket| device::find(&mut socket, &conf.bridge));
        found.map_err(|error| CniError { code: Code::NotAvailable, ..error })?;
        if conf.ip_masq {
            masquerade::status()?;
        }
        ipam::status(call)
    }
}

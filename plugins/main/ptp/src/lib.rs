//! The `ptp` CNI plugin: a veth or netkit pair between the container and the node, which is the container's gateway. There
//! is no bridge: the node has a route to each container.
//!
//! [`config`] decodes the configuration, and [`plan`] combines it with the addresses from IPAM; neither touches the
//! kernel. [`add`] and [`check`] hold the steps of these verbs; `ferrule-kit` has the rest.

#![deny(missing_docs)]

pub mod add;
pub mod check;
pub mod config;
pub mod plan;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError};
use ferrule_kit::{detach, ipam, masquerade};

use config::Conf;

/// The plugin.
pub struct Ptp;

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
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

    /// Checks that the configuration is valid, that the node can masquerade, and that IPAM is ready.
    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        let conf = Conf::read(call.config)?;
        if let Some(backend) = conf.masquerade {
            masquerade::status_of(backend)?;
        }
        ipam::status(call)
    }
}

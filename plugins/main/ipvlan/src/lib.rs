//! The `ipvlan` CNI plugin: a link that shares the MAC address of a link of the node. It may be chained to a plugin that
//! made this link.
//!
//! [`config`] decodes the configuration and does not touch the kernel. `ferrule-kit` has the rest, which all plugins of
//! one link share.

#![deny(missing_docs)]

pub mod config;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError};
use ferrule_kit::container_link::{self, Attaching};
use ferrule_kit::{ipam, pod_resources};

/// The plugin.
pub struct Ipvlan;

impl Plugin for Ipvlan {
    fn name(&self) -> &'static str {
        "ipvlan"
    }

    /// Without IPAM takes over the addresses of `prevResult`, and replaces its interface.
    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        let mut link = config::of_add(call.config, call.prev_result.as_ref())?;
        if !link.find_parent(call)? {
            return Ok(pod_resources::skipped(call));
        }
        let former = call.prev_result.clone().filter(|former| !former.ips.is_empty());
        if let Some(former) = former
            && call.config.ipam_type()?.is_none()
        {
            let call = AddRequest { prev_result: None, ..*call };
            let mut attaching = Attaching::begin(&call, &link)?;
            attaching.assigned = Some(former);
            return attaching.make(None);
        }
        let ipam = ipam::of_add(call)?;
        Attaching::begin(call, &link)?.make(ipam.as_ref())
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        // `prevResult` now has the ipvlan itself, so it does not name the master.
        let link = config::read(call.config)?;
        if link.is_skipped(call) { Ok(()) } else { container_link::check(call, &link).map(drop) }
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        container_link::del(call, "ipvlan", || config::read(call.config).ok(), |_| Ok(()))
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        container_link::gc(call, |_| Ok(()))
    }

    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        let mut link = config::read(call.config)?;
        // The plugin before this one may name it.
        link.parent = link.parent.filter(|parent| !parent.name.is_empty());
        container_link::status(call, &link)
    }
}

//! The `macvlan` CNI plugin: a link with a MAC address of its own on a link of the node.
//!
//! [`config`] decodes the configuration and does not touch the kernel. `ferrule-kit` has the rest, which all plugins of one link share.

#![deny(missing_docs)]

pub mod config;

use cni_common::plugin::{AddRequest, Attachment, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError};
use ferrule_kit::container_link::{self, Attaching, vlan_device};
use ferrule_kit::{ipam, pod_resources};

use config::Conf;

/// The plugin.
pub struct Macvlan;

impl Plugin for Macvlan {
    fn name(&self) -> &'static str {
        "macvlan"
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        let mut conf = Conf::read(call.config, &call.env.args)?;
        if !conf.link.find_parent(call)? {
            return Ok(pod_resources::skipped(call));
        }
        let ipam = ipam::of_add(call)?;
        let mut attaching = Attaching::begin(call, &conf.link)?;
        let (Some(id), Some(master)) = (conf.vlan, attaching.parent.clone()) else {
            return attaching.make(ipam.as_ref());
        };
        let attachment = Attachment::from(call);
        attaching.parent = Some(vlan_device::acquire(attaching.socket(), &master, id, &attachment)?);
        attaching.make(ipam.as_ref()).inspect_err(|_| {
            if let Err(error) = vlan_device::release(&attachment) {
                eprintln!("failed to undo a failed ADD: {error}");
            }
        })
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        let link = Conf::read(call.config, &call.env.args)?.of_check();
        if link.is_skipped(call) { Ok(()) } else { container_link::check(call, &link).map(drop) }
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        let wanted = || Conf::read(call.config, "").ok().map(Conf::of_check);
        let release = |call: &DelRequest<'_>| vlan_device::release(&Attachment::from(call));
        container_link::del(call, "macvlan", wanted, release)
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        container_link::gc(call, |call| vlan_device::collect(call.config.name(), call.valid))
    }

    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        container_link::status(call, &Conf::read(call.config, "")?.link)
    }
}

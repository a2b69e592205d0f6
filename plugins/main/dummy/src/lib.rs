//! The `dummy` CNI plugin: an interface that carries addresses and drops everything that is sent through it.
//!
//! It is only its configuration: `ferrule-kit` has the rest, which all plugins of one link share.

#![deny(missing_docs)]

use cni_common::plugin::{AddRequest, DelRequest, Delegate, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, NetConf};
use ferrule_kit::container_link::{self, Attaching, ContainerLink};

/// The plugin.
pub struct Dummy;

/// Reads the configuration. Like the reference, does not read CNI_ARGS.
///
/// # Errors
/// Code 6 if the configuration cannot be decoded, 7 if a value is invalid or there is no IPAM plugin.
fn read(config: &NetConf) -> Result<ContainerLink, CniError> {
    if config.ipam_type()?.is_none() {
        return Err(CniError::invalid_config("dummy interface requires an IPAM configuration"));
    }
    ContainerLink::read("dummy", config, "")
}

impl Plugin for Dummy {
    fn name(&self) -> &'static str {
        "dummy"
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        let link = read(call.config)?;
        let ipam = Delegate::ipam(call.env, call.config)?;
        Attaching::begin(call, &link)?.make(ipam.as_ref())
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        container_link::check(call, &read(call.config)?).map(drop)
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        container_link::del(call, "dummy", || read(call.config).ok(), |_| Ok(()))
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        container_link::gc(call, |_| Ok(()))
    }

    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        container_link::status(call, &read(call.config)?)
    }
}

//! The `dummy` CNI plugin: an interface that carries addresses and drops everything that is sent through it.
//!
//! It is only its configuration: `ferrule-container-link` has the rest, which all plugins of one link share.

#![deny(missing_docs)]

use cni_common::plugin::Plugin;
use cni_common::spec::{CniError, NetConf};
use ferrule_container_link::{ContainerLink, ContainerPlugin, plugin};

/// The plugin.
pub const PLUGIN: Plugin = plugin::<Dummy>("dummy");

struct Dummy;

impl ContainerPlugin for Dummy {
    const KIND: &'static str = "dummy";

    /// Like the reference, does not read CNI_ARGS.
    fn read(config: &NetConf, _: &str) -> Result<ContainerLink, CniError> {
        if config.ipam_type()?.is_none() {
            return Err(CniError::invalid_config("dummy interface requires an IPAM configuration"));
        }
        ContainerLink::read(Self::KIND, config, "")
    }
}

//! The `firewall` CNI plugin: lets the forwarded packets of a container pass, and separates bridges.
//!
//! [`config`] decodes the configuration, and [`plan`] computes what ADD makes; these two do not touch the kernel.
//! [`links`] finds the bridge. [`nft`] is the table that knows the owner of each address, and the nftables backend.
//! [`iptables`] and [`firewalld`] are the other backends, and [`forward_chain`] opens a chain `FORWARD` of
//! iptables for the nftables backend. [`choice`] selects the backend, [`verbs`] holds the steps of each verb, and
//! [`repair`] makes them again for a running container.

#![deny(missing_docs)]

pub mod choice;
pub mod config;
pub mod firewalld;
pub mod forward_chain;
pub mod iptables;
pub mod links;
pub mod list;
pub mod nft;
pub mod plan;
pub mod repair;
pub mod verbs;

use cni_common::plugin::Plugin;
use cni_common::spec::SpecVersion;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    // Versions before 0.3.0 have no chains. The reference starts at 0.4.0, but lists of version 0.3.1 name the plugin.
    spec_versions: SpecVersion::CHAINED,
    check: verbs::check,
    repair: Some(repair::repair),
    gc: verbs::gc,
    status: verbs::status,
    ..Plugin::new("firewall", verbs::add, verbs::del)
};

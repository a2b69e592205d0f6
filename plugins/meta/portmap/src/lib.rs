//! The `portmap` CNI plugin: host ports that lead to container ports.
//!
//! [`config`] decodes the configuration, [`assigned`] finds the addresses that IPAM has given, and [`plan`] computes the host ports; these two do not touch the kernel. [`nft`] and [`iptables`] are the two backends.
//! [`reference`](mod@reference) reads, writes and deletes the rules of the reference's nftables backend.
//! [`localhost`] enables connections from 127.0.0.0/8. [`services`] gives Services precedence if kube-proxy
//! runs in IPVS mode. [`flows`] deletes stale UDP and SCTP flows. [`verbs`] holds the steps of each verb,
//! [`repair`] makes them again for a running container, and [`export`] exports host ports to the reference plugin.

#![deny(missing_docs)]

pub mod assigned;
pub mod conditions;
pub mod config;
pub mod export;
pub mod flows;
pub mod iptables;
pub mod kube_proxy;
pub mod list;
pub mod localhost;
pub mod mapping;
pub mod mark;
pub mod nft;
pub mod plan;
pub mod reference;
pub mod remove;
pub mod repair;
pub mod services;
pub mod verbs;

use cni_common::plugin::Plugin;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    tool: export::tool,
    check: verbs::check,
    repair: Some(repair::repair),
    gc: verbs::gc,
    status: verbs::status,
    ..Plugin::new("portmap", verbs::add, verbs::del)
};

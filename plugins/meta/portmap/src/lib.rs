//! The `portmap` CNI plugin: host ports that lead to container ports.
//!
//! [`config`] decodes the configuration, [`address`] selects the container's addresses, and [`plan`] computes
//! the host ports; these three do not touch the kernel. [`nft`] and [`iptables`] are the two backends.
//! [`reference`](mod@reference) reads, writes and deletes the rules of the reference's nftables backend.
//! [`localhost`] enables connections from 127.0.0.0/8. [`services`] gives Services precedence if kube-proxy
//! runs in IPVS mode. [`flows`] deletes stale UDP and SCTP flows. [`verbs`] holds the steps of each verb, and
//! [`export`] exports host ports to the reference plugin.

#![deny(missing_docs)]

pub mod address;
pub mod conditions;
pub mod config;
pub mod export;
pub mod flows;
pub mod iptables;
pub mod localhost;
pub mod mapping;
pub mod mark;
pub mod nft;
pub mod plan;
pub mod reference;
pub mod services;
pub mod survey;
pub mod verbs;

use std::process::ExitCode;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError};

/// The plugin.
pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn tool(&self, arguments: &[String]) -> Option<ExitCode> {
        export::tool(arguments)
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        verbs::add(call)
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        verbs::check(call)
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        verbs::del(call)
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        verbs::gc(call)
    }

    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        verbs::status(call)
    }
}

//! The `portmap` CNI plugin: ports of the host that lead to ports of a container.
//!
//! [`config`] reads what is asked for, [`address`] picks the container's addresses, and [`plan`] works out what that means:
//! none of them asks the kernel. [`nft`] carries it out, or [`iptables`]; [`reference`](mod@reference) knows what the
//! reference plugin's nftables backend left. [`localhost`] lets connections from 127.0.0.1 through, and
//! [`services`] lets the Services of kube-proxy come first in its IPVS mode, and [`flows`] makes the kernel forget flows that would go on to where a host port led before. [`verbs`] tells each verb's
//! story, and [`hand_back`] gives live host ports to the reference plugin.

#![deny(missing_docs)]

pub mod address;
pub mod conditions;
pub mod config;
pub mod flows;
pub mod hand_back;
pub mod iptables;
pub mod localhost;
pub mod mapping;
pub mod mark;
pub mod nft;
pub mod owner;
pub mod plan;
pub mod reference;
pub mod services;
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
        hand_back::tool(arguments)
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

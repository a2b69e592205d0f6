//! The `firewall` CNI plugin: lets the forwarded packets of a container pass, and separates bridges.
//!
//! [`config`] decodes the configuration, and [`plan`] computes what ADD makes; these two do not touch the kernel.
//! [`links`] finds the bridge. [`nft`] is the table that knows the owner of each address, and the nftables backend.
//! [`iptables`] and [`firewalld`] are the other backends, and [`gate`] is the rule that opens a chain `FORWARD` of
//! iptables for the nftables backend. [`choice`] selects the backend, and [`verbs`] holds the steps of each verb.

#![deny(missing_docs)]

pub mod choice;
pub mod config;
pub mod firewalld;
pub mod gate;
pub mod iptables;
pub mod links;
pub mod nft;
pub mod plan;
pub mod survey;
pub mod verbs;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, SpecVersion};

/// The plugin.
pub struct Firewall;

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        "firewall"
    }

    // Versions before 0.3.0 have no chains. The reference starts at 0.4.0, but lists of version 0.3.1 name the plugin.
    fn spec_versions(&self) -> &'static [SpecVersion] {
        SpecVersion::CHAINED
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

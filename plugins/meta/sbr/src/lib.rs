//! The `sbr` CNI plugin: source-based routing. Packets from an interface's addresses leave by this interface, also if
//! the container's default route leads through another one.
//!
//! Each address gets a routing table and a rule `from ADDRESS lookup TABLE`. [`config`] decodes the configuration,
//! [`plan`] decides which routes go into which table; these two do not touch the kernel. [`verbs`] holds the steps of
//! the verbs.

#![deny(missing_docs)]

pub mod config;
pub mod plan;
pub mod verbs;

use cni_common::plugin::{AddRequest, DelRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code};

use config::Conf;

/// The plugin.
pub struct Sbr;

/// All state is in the container's namespace and goes with it, so GC has nothing to remove.
impl Plugin for Sbr {
    fn name(&self) -> &'static str {
        "sbr"
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

    /// Checks the configuration.
    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        let checked = Conf::read(call.config).map(drop);
        checked.map_err(|error| CniError { code: Code::NotAvailable, ..error })
    }
}

//! The `sbr` CNI plugin: source-based routing. Packets from an interface's addresses leave by this interface, also if
//! the container's default route leads through another one.
//!
//! Each address gets a routing table and a rule `from ADDRESS lookup TABLE`. [`config`] decodes the configuration,
//! [`plan`] decides which routes go into which table; these two do not touch the kernel. [`verbs`] holds the steps of
//! the verbs, [`repair`] those of repair.

#![deny(missing_docs)]

pub mod config;
pub mod plan;
pub mod repair;
pub mod verbs;

use cni_common::plugin::{Plugin, StatusRequest};
use cni_common::spec::{CniError, Code};

use config::Conf;

/// The plugin. All state is in the container's namespace and goes with it, so GC has nothing to remove.
pub const PLUGIN: Plugin = Plugin {
    check: verbs::check,
    repair: Some(repair::repair),
    status,
    ..Plugin::new("sbr", verbs::add, verbs::del)
};

/// Checks the configuration.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let checked = Conf::read(call.config).map(drop);
    checked.map_err(|error| CniError { code: Code::NotAvailable, ..error })
}

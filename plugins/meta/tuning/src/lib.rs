//! The `tuning` CNI plugin: sets sysctls and link attributes of the container's interface, behind any plugin that
//! made it.
//!
//! [`config`] merges the keys of all sources, [`sysctl`] orders and writes the sysctls, [`allowlist`] limits them to
//! those that the administrator permits. [`attributes`] and [`offload`] change and compare the link. [`state`] is the file
//! with the former attributes, which DEL restores. [`add`], [`check`], [`repair`] and [`remove`] hold the steps of the verbs.

#![deny(missing_docs)]

pub mod add;
pub mod allowlist;
pub mod attributes;
pub mod check;
pub mod config;
pub mod offload;
pub mod remove;
pub mod repair;
pub mod state;
pub mod sysctl;

use cni_common::plugin::{Plugin, StatusRequest};
use cni_common::spec::{CniError, Code};

use config::Conf;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    check: check::check,
    repair: Some(repair::repair),
    gc: remove::gc,
    status,
    ..Plugin::new("tuning", add::add, remove::del)
};

/// Checks the configuration, and that the allowlist permits its sysctls.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    // There is no interface yet, so IFNAME stands for itself.
    let checked =
        Conf::read(call.config, "", sysctl::IFNAME).and_then(|conf| allowlist::check(&conf.sysctls));
    checked.map_err(|error| CniError { code: Code::NotAvailable, ..error })
}

//! The `tuning` CNI plugin: sets sysctls and link attributes of the container's interface, behind any plugin that
//! made it.
//!
//! [`config`] merges the keys of all sources, [`sysctl`] orders and writes the sysctls, [`allowlist`] limits them to
//! those that the administrator permits. [`attributes`] and [`offload`] change and compare the link. [`backup`] is the file
//! with the former attributes, which DEL restores. [`add`], [`check`] and [`remove`] hold the steps of the verbs.

#![deny(missing_docs)]

pub mod add;
pub mod allowlist;
pub mod attributes;
pub mod backup;
pub mod check;
pub mod config;
pub mod offload;
pub mod remove;
pub mod sysctl;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code};

use config::Conf;

/// The plugin.
pub struct Tuning;

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        "tuning"
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        add::add(call)
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        check::check(call)
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        remove::del(call)
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        remove::gc(call)
    }

    /// Checks the configuration, and that the allowlist permits its sysctls.
    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        // There is no interface yet, so IFNAME stands for itself.
        let checked =
            Conf::read(call.config, "", sysctl::IFNAME).and_then(|conf| allowlist::check(&conf.sysctls));
        checked.map_err(|error| CniError { code: Code::NotAvailable, ..error })
    }
}

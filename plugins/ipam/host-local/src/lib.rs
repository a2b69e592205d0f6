//! The `host-local` CNI plugin: assigns addresses from configured ranges and records in files on the node
//! which attachment has which address.
//!
//! This is an IPAM plugin: another plugin calls it, and it never opens a network namespace. Ranges, store and index are those of
//! [`ferrule_reservations`], which `shared` uses too.

#![deny(missing_docs)]

pub use ferrule_reservations::*;

use cni_common::plugin::{AddRequest, Attachment, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, Dns, SpecVersion};
use ferrule_kit::check::prev_result;

use crate::config::Config;
use crate::reservations::Reservations;

/// The plugin.
pub const PLUGIN: Plugin =
    Plugin { check, gc: verbs::gc, status, ..Plugin::new("host-local", add, verbs::del) };

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let config = Config::load(call.config, call.version, &call.env.args)?;
    let dns = config.resolv_conf.as_deref().map_or(Ok(Dns::default()), resolv::read)?;
    let mut reservations = Reservations::new(&config.data_dir, call.config.name());
    reservations.store.create()?;
    let lock = reservations.store.lock()?;
    let outcome = alloc::allocate(&mut reservations, &Attachment::from(call), &config);
    reservations.finish(true);
    drop(lock);
    Ok(AddResult { ips: outcome?, routes: config.routes, dns, ..AddResult::default() })
}

fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let config = Config::load(call.config, call.version, &call.env.args)?;
    let result = prev_result(call)?;
    let mut reservations = Reservations::new(&config.data_dir, call.config.name());
    check::check(&mut reservations, &Attachment::from(call), &config.sets, result)
}

fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    // STATUS has no CNI_ARGS. Its version is not known here; only 1.1.0 and later allow STATUS, so use
    // the newest.
    let config = Config::load(call.config, SpecVersion::NEWEST, "")
        .map_err(|error| CniError { code: Code::NotAvailable, ..error })?;
    status::check_writable(&config.data_dir.join(call.config.name()))
}

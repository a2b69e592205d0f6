//! The `host-local` CNI plugin: assigns addresses from configured ranges and records in files on the node
//! which attachment has which address.
//!
//! This is an IPAM plugin: another plugin calls it, and it never opens a network namespace. Its files equal
//! the reference's ([`store`]), so either program can continue with the other's state. An additional
//! [`index`] can be lost without harm; with it, ADD and DEL take as long with 20,000 reservations as with
//! ten.
//!
//! [`range`], [`set`], [`config`] and [`owner`] are pure. [`reservations`] reads the index or the store. [`alloc`] and [`release`]
//! change the store, each call under one lock ([`store::Store::lock`]), except DEL if another process keeps the lock. CHECK and STATUS
//! change nothing. [`sweep`] is for `ferrule gc`.

#![deny(missing_docs)]

pub mod alloc;
pub mod boot;
pub mod check;
pub mod config;
pub mod index;
pub mod owner;
pub mod pending;
pub mod range;
pub mod release;
pub mod reservations;
pub mod resolv;
pub mod set;
pub mod status;
pub mod store;
pub mod sweep;

use cni_common::plugin::{AddRequest, Attachment, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, Dns, SpecVersion};
use ferrule_kit::check::prev_result;

use config::Config;
use reservations::Reservations;

/// The plugin.
pub const PLUGIN: Plugin = Plugin { check, gc, status, ..Plugin::new("host-local", add, del) };

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

/// Uses only the network's name and `dataDir` of the configuration. If the lock cannot be taken, DEL
/// continues without it, see [`release::release`], and leaves the index to the next call.
fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let mut reservations = Reservations::new(&config::data_dir_of(call.config), call.config.name());
    if !reservations.store.exists() {
        return Ok(());
    }
    let lock = reservations.store.lock();
    let outcome = release::release(&mut reservations, &Attachment::from(call), lock.is_ok());
    match lock {
        Ok(_locked) => reservations.finish(false),
        Err(error) => eprintln!("host-local: cannot take the lock, DEL continues without it: {error}"),
    }
    outcome
}

fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let mut reservations = Reservations::new(&config::data_dir_of(call.config), call.config.name());
    if !reservations.store.exists() {
        return Ok(());
    }
    let _lock = reservations.store.lock()?;
    let outcome = release::collect(&mut reservations, call.valid);
    reservations.finish(false);
    outcome
}

fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    // STATUS has no CNI_ARGS. Its version is not known here; only 1.1.0 and later allow STATUS, so use
    // the newest.
    let config = Config::load(call.config, SpecVersion::NEWEST, "")
        .map_err(|error| CniError { code: Code::NotAvailable, ..error })?;
    status::check_writable(&config.data_dir.join(call.config.name()))
}

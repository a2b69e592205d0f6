//! The `host-local` CNI plugin: assigns addresses from configured ranges and records in files on the node
//! which attachment has which address.
//!
//! This is an IPAM plugin: another plugin calls it, and it never opens a network namespace. Its files equal
//! the reference's ([`store`]), so either program can continue with the other's state. An additional
//! [`index`] can be lost without harm; with it, ADD and DEL take as long with 20,000 reservations as with
//! ten.
//!
//! [`range`], [`set`], [`config`], [`resolv`] and [`owner`] are pure. [`alloc`] and [`release`] change the
//! store, each call under one lock ([`store::Store::lock`]), except DEL if another process keeps the lock. CHECK and STATUS
//! change nothing.

#![deny(missing_docs)]

pub mod alloc;
pub mod boot;
pub mod check;
pub mod config;
pub mod draft;
pub mod index;
pub mod ledger;
pub mod owner;
pub mod range;
pub mod release;
pub mod resolv;
pub mod set;
pub mod status;
pub mod store;
pub mod survey;

use std::fs;
use std::io;
use std::path::Path;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, Dns, SpecVersion};

use config::Config;
use index::Index;
use ledger::Reservations;
use owner::Owner;
use store::Store;

/// The plugin.
pub struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        let config = Config::load(call.config, call.version, &call.env.args)?;
        let dns = config.resolv_conf.as_deref().map_or(Ok(Dns::default()), read_resolv_conf)?;
        let (store, index) = open(&config.data_dir, call.config.name());
        store.create()?;
        let lock = store.lock()?;
        let mut reservations = Reservations::new(&store, &index);
        let owner = Owner { container_id: call.container_id, ifname: call.ifname };
        let outcome = alloc::allocate(&store, &mut reservations, &owner, &config);
        reservations.finish(true);
        drop(lock);
        Ok(AddResult { ips: outcome?, routes: config.routes, dns, ..AddResult::default() })
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        let config = Config::load(call.config, call.version, &call.env.args)?;
        let Some(result) = &call.prev_result else {
            return Err(CniError::invalid_config("Required prevResult missing"));
        };
        let (store, index) = open(&config.data_dir, call.config.name());
        let owner = Owner { container_id: call.container_id, ifname: call.ifname };
        check::check(&store, &mut Reservations::new(&store, &index), &owner, &config.sets, result)
    }

    /// Uses only the network's name and `dataDir` of the configuration. If the lock cannot be taken, DEL
    /// continues without it, see [`release::release`], and leaves the index to the next call.
    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        let (store, index) = open(&config::data_dir_of(call.config), call.config.name());
        if !store.exists() {
            return Ok(());
        }
        let lock = store.lock();
        let mut reservations = Reservations::new(&store, &index);
        let owner = Owner { container_id: call.container_id, ifname: call.ifname };
        let outcome = release::release(&store, &mut reservations, &owner, lock.is_ok());
        match lock {
            Ok(_locked) => reservations.finish(false),
            Err(error) => eprintln!("host-local: cannot take the lock, DEL continues without it: {error}"),
        }
        outcome
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        let (store, index) = open(&config::data_dir_of(call.config), call.config.name());
        if !store.exists() {
            return Ok(());
        }
        let _lock = store.lock()?;
        let mut reservations = Reservations::new(&store, &index);
        let outcome = release::collect(&store, &mut reservations, call.valid);
        reservations.finish(false);
        outcome
    }

    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        // STATUS has no CNI_ARGS. Its version is not known here; only 1.1.0 and later allow STATUS, so use
        // the newest.
        let config = Config::load(call.config, SpecVersion::NEWEST, "")
            .map_err(|error| CniError { code: Code::NotAvailable, ..error })?;
        status::check_writable(&config.data_dir.join(call.config.name()))
    }
}

fn open(data_dir: &Path, network: &str) -> (Store, Index) {
    (Store::new(data_dir.join(network)), Index::new(data_dir, network))
}

fn read_resolv_conf(path: &Path) -> Result<Dns, CniError> {
    match fs::read(path) {
        Ok(text) => Ok(resolv::parse(&String::from_utf8_lossy(&text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(CniError::new(Code::Io, format!("open {}: no such file or directory", path.display())))
        }
        Err(error) => Err(CniError::new(Code::Io, format!("open {}: {error}", path.display()))),
    }
}

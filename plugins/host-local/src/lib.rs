//! The `host-local` CNI plugin: gives out addresses of configured ranges and remembers in files on the node who has which.
//!
//! An IPAM plugin: it runs for another plugin and never looks at a namespace. What it keeps on disk is what the reference
//! keeps ([`store`]), so that either can go on where the other stopped. What it has more lies beside ([`index`]), costs nothing
//! to lose, and makes ADD and DEL as quick with 20,000 reservations as with ten.
//!
//! [`range`], [`set`], [`config`], [`resolv`] and [`owner`] are pure. [`alloc`] and [`release`] do the work, each command in one
//! critical section ([`store::Store::lock`]); CHECK and STATUS only look.

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

use std::fs;
use std::io;
use std::path::Path;

use cni_common::plugin::{Attach, Collect, Detach, Plugin, Probe};
use cni_common::spec::{AddResult, CniError, Code, Dns, SpecVersion};

use config::Config;
use index::Index;
use ledger::Ledger;
use owner::Owner;
use store::Store;

/// The plugin.
pub struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn add(&self, call: &Attach<'_>) -> Result<AddResult, CniError> {
        let config = Config::load(call.config, call.version, &call.env.args)?;
        let dns = config.resolv_conf.as_deref().map_or(Ok(Dns::default()), read_resolv_conf)?;
        let (store, index) = open(&config.data_dir, call.config.name());
        store.create()?;
        let lock = store.lock()?;
        let mut ledger = Ledger::new(&store, &index);
        let owner = Owner { container_id: call.container_id, ifname: call.ifname };
        let outcome = alloc::allocate(&store, &mut ledger, &owner, &config);
        ledger.finish(true);
        drop(lock);
        Ok(AddResult { ips: outcome?, routes: config.routes, dns, ..AddResult::default() })
    }

    fn check(&self, call: &Attach<'_>) -> Result<(), CniError> {
        let config = Config::load(call.config, call.version, &call.env.args)?;
        let Some(result) = &call.prev_result else {
            return Err(CniError::invalid_config("Required prevResult missing"));
        };
        let (store, index) = open(&config.data_dir, call.config.name());
        let owner = Owner { container_id: call.container_id, ifname: call.ifname };
        check::check(&store, &mut Ledger::new(&store, &index), &owner, &config.sets, result)
    }

    /// Needs nothing of the configuration but the network's name and `dataDir`. Without the lock it goes on all the same:
    /// it removes files only that hold this attachment's name.
    fn del(&self, call: &Detach<'_>) -> Result<(), CniError> {
        let (store, index) = open(&config::data_dir_of(call.config), call.config.name());
        if !store.exists() {
            return Ok(());
        }
        let lock = store.lock();
        let mut ledger = Ledger::new(&store, &index);
        let owner = Owner { container_id: call.container_id, ifname: call.ifname };
        let outcome = release::release(&store, &mut ledger, &owner);
        match lock {
            Ok(_locked) => ledger.finish(false),
            Err(error) => eprintln!("host-local: DEL goes on without the lock: {error}"),
        }
        outcome
    }

    fn gc(&self, call: &Collect<'_>) -> Result<(), CniError> {
        let (store, index) = open(&config::data_dir_of(call.config), call.config.name());
        if !store.exists() {
            return Ok(());
        }
        let _lock = store.lock()?;
        let mut ledger = Ledger::new(&store, &index);
        let outcome = release::collect(&store, &mut ledger, call.valid);
        ledger.finish(false);
        outcome
    }

    fn status(&self, call: &Probe<'_>) -> Result<(), CniError> {
        // Nobody asks for addresses in STATUS, so CNI_ARGS have nothing to say. The version allows STATUS: it is new.
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

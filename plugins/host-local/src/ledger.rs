//! What a command knows of the reservations and what it changes: out of the index if that knows all, out of the store
//! otherwise.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use cni_common::spec::CniError;

use super::index::Index;
use super::owner::{Holder, Owner};
use super::store::Store;

/// An address and who holds it.
pub type Reservation = (IpAddr, Holder);

/// The view of one command. Nothing in it is trusted that the store does not confirm.
pub struct Ledger<'a> {
    store: &'a Store,
    index: &'a Index,
    /// Every reservation, once the store had to be read.
    all: Option<Vec<Reservation>>,
    /// Whether nothing is missing, neither in `all` nor, without it, in the index.
    is_complete: bool,
    added: Vec<Reservation>,
    removed: Vec<Reservation>,
}

impl<'a> Ledger<'a> {
    /// Looks whether the index knows every reservation. Without it, the store will be read.
    pub fn new(store: &'a Store, index: &'a Index) -> Self {
        Ledger { store, index, all: None, is_complete: false, added: Vec::new(), removed: Vec::new() }
    }

    /// The attachment's reservations, and those of its container that name no interface.
    ///
    /// # Errors
    /// Code 5 if the store cannot be read.
    pub fn held_by(&mut self, owner: &Owner<'_>) -> Result<Vec<Reservation>, CniError> {
        if self.all.is_none()
            && self.index.is_sealed()
            && let Some(held) = self.listed(owner)
        {
            self.is_complete = true;
            return Ok(held);
        }
        let (exact, legacy) = (owner.holder(), owner.legacy_holder());
        let mut held = self.all()?.to_vec();
        held.retain(|(_, holder)| *holder == exact || *holder == legacy);
        Ok(held)
    }

    /// What the index lists, if all of it is true.
    fn listed(&self, owner: &Owner<'_>) -> Option<Vec<Reservation>> {
        let mut held = Vec::new();
        for holder in [owner.holder(), owner.legacy_holder()] {
            for ip in self.index.get(&holder.key()?).ok()? {
                // Files that somebody wrote over in place: only reading all of them tells what is where.
                let is_true = self.store.holder(ip).as_ref() == Some(&holder);
                held.push(is_true.then(|| (ip, holder.clone()))?);
            }
        }
        Some(held)
    }

    /// Every reservation, out of the store.
    ///
    /// # Errors
    /// Code 5 if the store cannot be read.
    pub fn all(&mut self) -> Result<&[Reservation], CniError> {
        let mut all = match self.all.take() {
            Some(all) => all,
            None => {
                let (all, is_complete) = self.store.scan()?;
                self.is_complete = is_complete;
                all
            }
        };
        all.sort_by_key(|(ip, _)| *ip);
        Ok(self.all.insert(all))
    }

    /// Notes that `ip` was reserved for `holder`.
    pub fn added(&mut self, ip: IpAddr, holder: Holder) {
        self.added.push((ip, holder));
    }

    /// Notes that `holder` has `ip` no longer.
    pub fn removed(&mut self, ip: IpAddr, holder: Holder) {
        match self.added.iter().position(|added| *added == (ip, holder.clone())) {
            Some(position) => drop(self.added.remove(position)),
            None => self.removed.push((ip, holder)),
        }
    }

    /// Brings the index up to date. The store must have been locked all the time. Where there is no index, one is made
    /// only if `create` is set: DEL and GC make no folders.
    ///
    /// An index that cannot be written stays unsealed: the next command reads the store.
    pub fn finish(self, create: bool) {
        let _ = self.write(create);
    }

    fn write(self, create: bool) -> io::Result<()> {
        if !self.is_complete {
            return Ok(());
        }
        if self.all.is_some() {
            if !self.index.exists() {
                if !create {
                    return Ok(());
                }
                self.index.create()?;
            }
            self.index.rebuild(&self.entries())?;
            return self.index.seal();
        }
        let mut lists: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for (_, holder) in self.removed.iter().chain(&self.added) {
            if let Some(key) = holder.key() {
                let list = self.index.get(&key)?;
                lists.insert(key, list);
            }
        }
        self.apply(&mut lists);
        lists.iter().try_for_each(|(key, list)| self.index.put(key, list))?;
        // What was done and undone again has broken the seal as well.
        if self.index.is_sealed() { Ok(()) } else { self.index.seal() }
    }

    fn entries(&self) -> BTreeMap<String, Vec<IpAddr>> {
        let mut entries: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for (ip, holder) in self.all.iter().flatten() {
            if let Some(key) = holder.key() {
                entries.entry(key).or_default().push(*ip);
            }
        }
        self.apply(&mut entries);
        entries.retain(|_, list| !list.is_empty());
        entries
    }

    fn apply(&self, lists: &mut BTreeMap<String, Vec<IpAddr>>) {
        for (ip, holder) in &self.removed {
            if let Some(list) = holder.key().and_then(|key| lists.get_mut(&key)) {
                list.retain(|listed| listed != ip);
            }
        }
        for (ip, holder) in &self.added {
            if let Some(key) = holder.key() {
                let list = lists.entry(key).or_default();
                list.push(*ip);
                list.sort();
            }
        }
    }
}

//! The reservations as one call sees and changes them: from the index if it is complete, else from the store.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use cni_common::spec::CniError;

use super::index::Index;
use super::owner::{Holder, Owner};
use super::store::Store;

/// An address and its holder.
pub type Reservation = (IpAddr, Holder);

/// The reservations in one call. The store must confirm every entry of the index.
pub struct Reservations<'a> {
    store: &'a Store,
    index: &'a Index,
    /// All reservations, if the store has been read.
    all: Option<Vec<Reservation>>,
    /// Whether `all`, or without it the index, is complete.
    is_complete: bool,
    added: Vec<Reservation>,
    removed: Vec<Reservation>,
}

impl<'a> Reservations<'a> {
    /// Reads nothing yet. The index or the store is read when a reservation is asked for.
    pub fn new(store: &'a Store, index: &'a Index) -> Self {
        Reservations { store, index, all: None, is_complete: false, added: Vec::new(), removed: Vec::new() }
    }

    /// The reservations of the attachment, and those of its container that name no interface.
    ///
    /// # Errors
    /// Code 5 if the store cannot be read.
    pub fn held_by(&mut self, owner: &Owner<'_>) -> Result<Vec<Reservation>, CniError> {
        if self.all.is_none()
            && self.index.is_stamped()
            && let Some(held) = self.in_index(owner)
        {
            self.is_complete = true;
            return Ok(held);
        }
        let (exact, legacy) = (owner.holder(), owner.legacy_holder());
        let mut held = self.all()?.to_vec();
        held.retain(|(_, holder)| *holder == exact || *holder == legacy);
        Ok(held)
    }

    /// The reservations that the index lists for the attachment; `None` if the store contradicts one of them.
    fn in_index(&self, owner: &Owner<'_>) -> Option<Vec<Reservation>> {
        let mut held = Vec::new();
        for holder in [owner.holder(), owner.legacy_holder()] {
            for ip in self.index.get(&holder.key()?).ok()? {
                // A file that was overwritten in place does not change the directory's mtime: read the whole
                // store then.
                let is_confirmed = self.store.holder(ip).as_ref() == Some(&holder);
                held.push(is_confirmed.then(|| (ip, holder.clone()))?);
            }
        }
        Some(held)
    }

    /// All reservations, read from the store.
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

    /// Records that `ip` was reserved for `holder`.
    pub fn added(&mut self, ip: IpAddr, holder: Holder) {
        self.added.push((ip, holder));
    }

    /// Records that `holder` no longer has `ip`.
    pub fn removed(&mut self, ip: IpAddr, holder: Holder) {
        match self.added.iter().position(|added| *added == (ip, holder.clone())) {
            Some(position) => drop(self.added.remove(position)),
            None => self.removed.push((ip, holder)),
        }
    }

    /// Updates the index. The store must have been locked since [`Reservations::new`]. A missing index is
    /// created only if `create` is set: DEL and GC create no directories.
    ///
    /// Without a complete update the index has no stamp, and the next call reads the store.
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
            return self.index.stamp();
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
        // A reservation that was made and undone in this call has invalidated the stamp too.
        if self.index.is_stamped() { Ok(()) } else { self.index.stamp() }
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

//! The reservations as one call sees and changes them: from the index if it is complete, else from the store.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;

use super::index::Index;
use super::owner::Owner;
use super::store::Store;

/// An address and its owner.
pub type Reservation = (IpAddr, Owner);

/// The reservations in one call. The store must confirm every entry of the index.
pub struct Reservations {
    /// The files of the network.
    pub store: Store,
    index: Index,
    /// All reservations, in the order of addresses, if the store has been read.
    all: Option<Vec<Reservation>>,
    /// Whether `all`, or without it the index, is complete.
    is_complete: bool,
    /// The changes of this call in their order: reserved (true) or released.
    changes: Vec<(Reservation, bool)>,
}

impl Reservations {
    /// The reservations of a network. Reads nothing yet: the index or the store is read when a reservation is asked for.
    pub fn new(data_dir: &Path, network: &str) -> Self {
        let (store, index) = (Store::new(data_dir.join(network)), Index::new(data_dir, network));
        Reservations { store, index, all: None, is_complete: false, changes: Vec::new() }
    }

    /// The reservations of the attachment, and those of its container that name no interface.
    ///
    /// # Errors
    /// Code 5 if the store cannot be read.
    pub fn of(&mut self, attachment: &Attachment<'_>) -> Result<Vec<Reservation>, CniError> {
        let owners = [Owner::of(attachment), Owner::legacy(attachment)];
        if self.all.is_none()
            && self.index.is_stamped()
            && let Some(listed) = self.in_index(&owners)
        {
            self.is_complete = true;
            return Ok(listed);
        }
        Ok(self.all()?.iter().filter(|(_, owner)| owners.contains(owner)).cloned().collect())
    }

    /// The reservations that the index lists for the owners; `None` if the store contradicts one of them.
    fn in_index(&self, owners: &[Owner]) -> Option<Vec<Reservation>> {
        let mut listed = Vec::new();
        for owner in owners {
            for ip in self.index.get(&owner.key()?).ok()? {
                // A file that was overwritten in place does not change the directory's mtime: read the whole
                // store then.
                let is_confirmed = self.store.owner(ip).as_ref() == Some(owner);
                listed.push(is_confirmed.then(|| (ip, owner.clone()))?);
            }
        }
        Some(listed)
    }

    /// All reservations, read from the store.
    ///
    /// # Errors
    /// Code 5 if the store cannot be read.
    pub fn all(&mut self) -> Result<&[Reservation], CniError> {
        if self.all.is_none() {
            let (mut all, is_complete) = self.store.scan()?;
            all.sort_by_key(|(ip, _)| *ip);
            (self.all, self.is_complete) = (Some(all), is_complete);
        }
        Ok(self.all.as_deref().unwrap_or_default())
    }

    /// Notes that the store has reserved the address for the owner.
    pub fn added(&mut self, ip: IpAddr, owner: Owner) {
        self.changes.push(((ip, owner), true));
    }

    /// Releases the owner's address. A missing file is success.
    ///
    /// # Errors
    /// Code 5 with the file's name.
    pub fn release(&mut self, ip: IpAddr, owner: Owner) -> Result<(), CniError> {
        self.store.release(ip)?;
        self.changes.push(((ip, owner), false));
        Ok(())
    }

    /// Updates the index. The store must have been locked since [`Reservations::new`]. A missing index is
    /// created only if `create` is set: DEL and GC create no directories.
    ///
    /// Without a complete update the index has no stamp, and the next call reads the store.
    pub fn finish(self, create: bool) {
        let _ = self.write(create);
    }

    fn write(self, create: bool) -> io::Result<()> {
        let Reservations { index, all, changes, .. } = self;
        if !self.is_complete {
            return Ok(());
        }
        let mut lists: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        let Some(all) = all else {
            for ((_, owner), _) in &changes {
                if let Some(key) = owner.key() {
                    let list = index.get(&key)?;
                    lists.insert(key, list);
                }
            }
            apply(changes, &mut lists);
            lists.iter().try_for_each(|(key, list)| index.put(key, list))?;
            // A reservation that was made and undone in this call has invalidated the stamp too.
            return if index.is_stamped() { Ok(()) } else { index.stamp() };
        };
        if !index.exists() {
            if !create {
                return Ok(());
            }
            index.create()?;
        }
        apply(all.into_iter().map(|one| (one, true)).chain(changes), &mut lists);
        lists.retain(|_, list| !list.is_empty());
        index.rebuild(&lists)?;
        index.stamp()
    }
}

fn apply(changes: impl IntoIterator<Item = (Reservation, bool)>, lists: &mut BTreeMap<String, Vec<IpAddr>>) {
    for ((ip, owner), is_reserved) in changes {
        let Some(key) = owner.key() else { continue };
        let list = lists.entry(key).or_default();
        list.retain(|listed| *listed != ip);
        if is_reserved {
            list.push(ip);
            list.sort();
        }
    }
}

//! What the operator's tool reads of a store, and how it releases one reservation.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni_common::spec::CniError;

use super::ledger::Reservations;
use super::owner::{Holder, Owner};
use super::{Store, open};

/// A reserved address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The address.
    pub ip: IpAddr,
    /// Whose it is.
    pub holder: Holder,
    /// Its file.
    pub path: PathBuf,
    /// When it was reserved, as far as the file system knows.
    pub since: Option<SystemTime>,
    /// Whether the file has the mark of this plugin. The reference makes no mark, nor does this plugin on a file system
    /// without extended attributes.
    pub is_marked: bool,
    /// Whether it was reserved before the last boot: its container cannot be running.
    pub is_of_earlier_boot: bool,
}

/// Reads all reservations of a network. A missing directory has none.
///
/// # Errors
/// Code 5 if the directory cannot be read.
pub fn list(data_dir: &Path, network: &str) -> Result<Vec<Reserved>, CniError> {
    let store = Store::new(data_dir.join(network));
    Ok(store.addresses()?.into_iter().filter_map(|ip| store.reserved(ip)).collect())
}

/// Releases an address under the store's lock, if this holder still has it and `is_dead` says so. Returns whether it has.
///
/// # Errors
/// Code 11 if another process keeps the lock; code 5 if the file cannot be removed.
pub fn release(
    data_dir: &Path,
    network: &str,
    ip: IpAddr,
    holder: &Holder,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let (store, index) = open(data_dir, network);
    if !store.exists() {
        return Ok(false);
    }
    let _lock = store.lock()?;
    if store.holder(ip).as_ref() != Some(holder) || !is_dead() {
        return Ok(false);
    }
    let mut reservations = Reservations::new(&store, &index);
    if let Holder::Attachment { container_id, ifname } = holder {
        reservations.held_by(&Owner { container_id, ifname })?;
    } else {
        reservations.all()?;
    }
    store.release(ip)?;
    reservations.removed(ip, holder.clone());
    reservations.finish(false);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_dead_holders_reservation_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let (store, index) = open(dir.path(), "net");
        store.create().unwrap();
        let ips: [IpAddr; 2] = ["10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap()];
        for (ip, container_id) in ips.into_iter().zip(["one", "two"]) {
            let owner = Owner { container_id, ifname: "eth0" };
            store.reserve(&mut store.pending_file(&owner).unwrap(), ip).unwrap();
        }
        let mut reservations = Reservations::new(&store, &index);
        reservations.all().unwrap();
        reservations.finish(true);
        fs::write(dir.path().join("net/10.0.0.9"), "").unwrap();

        let mut found = list(dir.path(), "net").unwrap();
        found.sort_by_key(|reserved| reserved.ip);
        assert_eq!(found.len(), 3);
        assert!(!found[0].is_of_earlier_boot && found[2].holder == Holder::Empty && !found[2].is_marked);
        let one = &found[0].holder;
        assert!(!release(dir.path(), "net", ips[0], one, &mut || false).unwrap());
        assert!(!release(dir.path(), "net", ips[1], one, &mut || true).unwrap());
        assert!(release(dir.path(), "net", ips[0], one, &mut || true).unwrap());
        assert!(!release(dir.path(), "net", ips[0], one, &mut || panic!("asked again")).unwrap());
        assert_eq!(list(dir.path(), "net").unwrap().len(), 2);
        let owner = |container_id| Owner { container_id, ifname: "eth0" };
        let held =
            |container_id| Reservations::new(&store, &index).held_by(&owner(container_id)).unwrap().len();
        assert_eq!((held("one"), held("two")), (0, 1));
        assert!(list(dir.path(), "none").unwrap().is_empty());
    }
}

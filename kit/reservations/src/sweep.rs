//! For `ferrule gc`: releases many addresses of one network in short holds of the lock, so that ADD and DEL get it in between.
//!
//! The index keeps its stamp: else the next ADD would read all reservations that are left.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use cni_common::spec::CniError;

use super::index::Index;
use super::store::{Reserved, Store};

/// The reservations of a network.
#[derive(Debug)]
pub struct Sweep {
    store: Store,
    index: Index,
}

impl Sweep {
    /// The reservations of a network. Reads nothing.
    pub fn new(data_dir: &Path, network: &str) -> Sweep {
        Sweep { store: Store::new(data_dir.join(network)), index: Index::new(data_dir, network) }
    }

    /// Waits for the end of the call that has the lock.
    ///
    /// # Errors
    /// As [`Store::lock`].
    pub fn wait(&self) -> Result<(), CniError> {
        if self.store.exists() { self.store.lock().map(drop) } else { Ok(()) }
    }

    /// Takes the lock, and releases the first of these addresses until it has had the lock for `hold`, but at least one. Skips those
    /// whose file has changed since it was listed. Releases none if it gets the lock only after `until`. Returns for each of the first
    /// ones whether it was released.
    ///
    /// # Errors
    /// As [`Store::lock`].
    pub fn release(
        &self,
        listed: &[Reserved],
        hold: Duration,
        until: Instant,
    ) -> Result<Vec<Result<bool, CniError>>, CniError> {
        if !self.store.exists() {
            return Ok(listed.iter().map(|_| Ok(false)).collect());
        }
        let _lock = self.store.lock()?;
        let start = Instant::now();
        if start > until {
            return Ok(Vec::new());
        }
        let mut is_indexed = self.index.is_stamped();
        let mut outcomes = Vec::new();
        for reserved in listed {
            let outcome = self.store.release_unchanged(reserved);
            if is_indexed && matches!(outcome, Ok(true)) {
                is_indexed = self.forget(reserved).is_ok();
            }
            outcomes.push(outcome);
            if start.elapsed() >= hold {
                break;
            }
        }
        if is_indexed && !self.index.is_stamped() {
            // Without the stamp the next call reads the store.
            let _ = self.index.stamp();
        }
        Ok(outcomes)
    }

    /// Removes the address from the index.
    fn forget(&self, reserved: &Reserved) -> io::Result<()> {
        let Some(key) = reserved.owner.key() else { return Ok(()) };
        let mut addresses = self.index.get(&key)?;
        addresses.retain(|ip| *ip != reserved.ip);
        self.index.put(&key, &addresses)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::IpAddr;
    use std::thread::sleep;

    use cni_common::plugin::Attachment;

    use super::*;
    use crate::owner::Owner;
    use crate::reservations::Reservations;

    const LONG: Duration = Duration::from_secs(60);

    fn attachment(container_id: &str) -> Attachment<'_> {
        Attachment { network: "net", container_id, ifname: "eth0" }
    }

    fn reserve(store: &Store, container: &str, ip: IpAddr) {
        let mut pending = store.pending_file(&attachment(container)).unwrap();
        assert!(store.reserve(&mut pending, ip).unwrap());
    }

    #[test]
    fn unchanged_reservations_are_released_and_the_index_stays_complete() {
        let dir = tempfile::tempdir().unwrap();
        let new = || Reservations::new(dir.path(), "net");
        let sweep = Sweep::new(dir.path(), "net");
        assert!(sweep.wait().is_ok() && sweep.store.list().unwrap().is_empty());
        sweep.store.create().unwrap();
        sweep.wait().unwrap();
        let ips: Vec<IpAddr> = (2..8).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        for (ip, container) in ips.iter().zip(["one", "one", "two", "three", "four", "five"]) {
            reserve(&sweep.store, container, *ip);
        }
        fs::write(dir.path().join("net/10.0.0.99"), "").unwrap();
        let mut reservations = new();
        reservations.all().unwrap();
        reservations.finish(true);
        let mut listed = sweep.store.list().unwrap();
        listed.sort_by_key(|reserved| reserved.ip);
        assert!(!listed[0].is_of_earlier_boot && !listed[6].is_marked && listed[6].owner == Owner::Empty);
        listed.truncate(ips.len());

        // The same container has got its address again, another one has got one, a third one was released.
        sleep(Duration::from_millis(20));
        ips[2..5].iter().for_each(|ip| sweep.store.release(*ip).unwrap());
        reserve(&sweep.store, "two", ips[2]);
        reserve(&sweep.store, "new", ips[3]);
        let mut reservations = new();
        reservations.all().unwrap();
        reservations.finish(true);

        let late = Instant::now().checked_sub(LONG).unwrap();
        assert!(sweep.release(&listed, LONG, late).unwrap().is_empty(), "after a long wait for the lock");
        let until = Instant::now() + LONG;
        let outcomes = |listed: &[Reserved], hold| -> Vec<bool> {
            sweep.release(listed, hold, until).unwrap().into_iter().map(Result::unwrap).collect()
        };
        assert_eq!(outcomes(&listed, Duration::ZERO), [true], "one in each hold");
        assert!(sweep.index.is_stamped());
        assert_eq!(sweep.index.get("one:eth0").unwrap(), ips[1..2]);
        assert_eq!(outcomes(&listed[1..], LONG), [true, false, false, false, true]);
        assert!(sweep.index.is_stamped());
        let held = |container| new().of(&attachment(container)).unwrap().len();
        assert_eq!(["one", "two", "new", "four", "five"].map(held), [0, 1, 1, 0, 0]);
        assert_eq!(sweep.store.list().unwrap().len(), 3);
    }

    #[test]
    fn an_incomplete_index_gets_no_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let sweep = Sweep::new(dir.path(), "net");
        sweep.store.create().unwrap();
        sweep.index.create().unwrap();
        reserve(&sweep.store, "one", [10, 0, 0, 2].into());
        let listed = sweep.store.list().unwrap();
        assert!(sweep.release(&listed, LONG, Instant::now() + LONG).unwrap()[0].as_ref().unwrap());
        assert!(!sweep.index.is_stamped());
    }
}

//! DEL and GC: release addresses.

use std::collections::BTreeSet;

use cni_common::spec::{CniError, Failures, ValidAttachment};

use super::ledger::{Reservation, Reservations};
use super::owner::{Holder, Owner};
use super::store::Store;

/// Releases the addresses of `owner`. Like the reference, releases reservations without an interface name
/// only if no reservation has the interface's name.
///
/// Without the lock, another process may have given an address to another container since the reservations were read, so each is read
/// again right before its removal. No system call does both. A change between the two would be that another DEL or GC removes this
/// attachment at the same moment, and an ADD gets its address.
///
/// # Errors
/// All addresses that could not be released; every one is tried.
pub fn release(
    store: &Store,
    reservations: &mut Reservations<'_>,
    owner: &Owner<'_>,
    is_locked: bool,
) -> Result<(), CniError> {
    let mut held = reservations.held_by(owner)?;
    let exact = owner.holder();
    if held.iter().any(|(_, holder)| *holder == exact) {
        held.retain(|(_, holder)| *holder == exact);
    }
    remove(store, reservations, held, is_locked)
}

/// Releases the addresses that belong to no attachment in `valid`. Placeholders stay. The store must be locked.
///
/// # Errors
/// All addresses that could not be released; every one is tried.
pub fn collect(
    store: &Store,
    reservations: &mut Reservations<'_>,
    valid: &[ValidAttachment],
) -> Result<(), CniError> {
    let alive = Alive::new(valid);
    let stale: Vec<Reservation> =
        reservations.all()?.iter().filter(|(_, holder)| !alive.may_hold(holder)).cloned().collect();
    remove(store, reservations, stale, true)
}

/// The attachments that still exist, sorted: a node may have thousands of both attachments and reservations.
struct Alive<'a>(BTreeSet<(&'a str, &'a str)>);

impl<'a> Alive<'a> {
    fn new(valid: &'a [ValidAttachment]) -> Self {
        Alive(valid.iter().map(|one| (&*one.container_id, &*one.ifname)).collect())
    }

    fn may_hold(&self, holder: &Holder) -> bool {
        match holder {
            Holder::Attachment { container_id, ifname } => self.0.contains(&(&**container_id, &**ifname)),
            Holder::Container(container_id) => {
                let mut from_container = self.0.range((&**container_id, "")..);
                from_container.next().is_some_and(|(first, _)| first == container_id)
            }
            Holder::Empty | Holder::Foreign => true,
        }
    }
}

fn remove(
    store: &Store,
    reservations: &mut Reservations<'_>,
    released: Vec<Reservation>,
    is_locked: bool,
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for (ip, holder) in released {
        if !is_locked && store.holder(ip).as_ref() != Some(&holder) {
            continue;
        }
        if failures.keep(store.release(ip)).is_some() {
            reservations.removed(ip, holder);
        }
    }
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::open;

    #[test]
    fn without_the_lock_an_address_stays_with_its_next_container() {
        let dir = tempfile::tempdir().unwrap();
        let (store, index) = open(dir.path(), "net");
        store.create().unwrap();
        let owner = |container_id| Owner { container_id, ifname: "eth0" };
        let content = |name: &str| fs::read_to_string(dir.path().join("net").join(name));
        for name in ["10.0.0.2", "10.0.0.3"] {
            fs::write(dir.path().join("net").join(name), "one\r\neth0").unwrap();
        }
        let mut reservations = Reservations::new(&store, &index);
        reservations.all().unwrap();
        fs::write(dir.path().join("net/10.0.0.2"), "two\r\neth0").unwrap();
        release(&store, &mut reservations, &owner("one"), false).unwrap();
        assert_eq!(content("10.0.0.2").unwrap(), "two\r\neth0");
        assert!(content("10.0.0.3").is_err());
    }

    #[test]
    fn reservations_without_a_valid_attachment_are_stale() {
        let valid = [ValidAttachment { container_id: "a".into(), ifname: "eth0".into() }];
        for (content, stale) in [
            ("a\r\neth0", false),
            ("a\r\neth1", true),
            ("b\r\neth0", true),
            ("a", false),
            ("b", true),
            ("", false),
            ("A\r\neth0", true),
            ("aa", true),
            ("kept for the printer", false),
        ] {
            let parsed = Holder::parse(content.as_bytes());
            assert_eq!(Alive::new(&valid).may_hold(&parsed), !stale, "{content:?}");
            assert_eq!(Alive::new(&[]).may_hold(&parsed), parsed.key().is_none(), "{content:?}");
        }
    }
}

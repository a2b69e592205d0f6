//! DEL and GC: release addresses.

use std::collections::BTreeSet;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Failures, ValidAttachment};

use super::owner::Owner;
use super::reservations::{Reservation, Reservations};

/// Releases the addresses of the attachment. Like the reference, releases reservations without an interface name
/// only if no reservation has the interface's name.
///
/// Without the lock, another process may have given an address to another container since the reservations were read, so each is read
/// again right before its removal. No system call does both. A change between the two would be that another DEL or GC removes this
/// attachment at the same moment, and an ADD gets its address.
///
/// # Errors
/// All addresses that could not be released; every one is tried.
pub fn release(
    reservations: &mut Reservations,
    attachment: &Attachment<'_>,
    is_locked: bool,
) -> Result<(), CniError> {
    let mut own = reservations.of(attachment)?;
    let exact = Owner::of(attachment);
    if own.iter().any(|(_, owner)| *owner == exact) {
        own.retain(|(_, owner)| *owner == exact);
    }
    remove(reservations, own, is_locked)
}

/// Releases the addresses that belong to no attachment in `valid`. Placeholders stay. The store must be locked.
///
/// # Errors
/// All addresses that could not be released; every one is tried.
pub fn collect(reservations: &mut Reservations, valid: &[ValidAttachment]) -> Result<(), CniError> {
    // Sorted: a node may have thousands of both attachments and reservations.
    let alive = valid.iter().map(|one| (&*one.container_id, &*one.ifname)).collect();
    let stale = reservations.all()?.iter().filter(|(_, owner)| !may_exist(owner, &alive)).cloned().collect();
    remove(reservations, stale, true)
}

/// Whether the owner is one of the attachments that still exist, or a placeholder.
fn may_exist(owner: &Owner, alive: &BTreeSet<(&str, &str)>) -> bool {
    match owner {
        Owner::Attachment { container_id, ifname } => alive.contains(&(&**container_id, &**ifname)),
        Owner::Container(container_id) => {
            let mut from_container = alive.range((&**container_id, "")..);
            from_container.next().is_some_and(|(first, _)| first == container_id)
        }
        Owner::Empty | Owner::Foreign => true,
    }
}

fn remove(
    reservations: &mut Reservations,
    released: Vec<Reservation>,
    is_locked: bool,
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for (ip, owner) in released {
        if is_locked || reservations.store.owner(ip).as_ref() == Some(&owner) {
            failures.keep(reservations.release(ip, owner));
        }
    }
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn without_the_lock_an_address_stays_with_its_next_container() {
        let dir = tempfile::tempdir().unwrap();
        let mut reservations = Reservations::new(dir.path(), "net");
        reservations.store.create().unwrap();
        let one = Attachment { network: "net", container_id: "one", ifname: "eth0" };
        let content = |name: &str| fs::read_to_string(dir.path().join("net").join(name));
        for name in ["10.0.0.2", "10.0.0.3"] {
            fs::write(dir.path().join("net").join(name), "one\r\neth0").unwrap();
        }
        reservations.all().unwrap();
        fs::write(dir.path().join("net/10.0.0.2"), "two\r\neth0").unwrap();
        release(&mut reservations, &one, false).unwrap();
        assert_eq!(content("10.0.0.2").unwrap(), "two\r\neth0");
        assert!(content("10.0.0.3").is_err());
    }

    #[test]
    fn reservations_without_a_valid_attachment_are_stale() {
        let alive = [("a", "eth0")].into();
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
            let parsed = Owner::parse(content.as_bytes());
            assert_eq!(may_exist(&parsed, &alive), !stale, "{content:?}");
            assert_eq!(may_exist(&parsed, &BTreeSet::new()), parsed.key().is_none(), "{content:?}");
        }
    }
}

//! DEL and GC: release addresses.

use std::collections::BTreeSet;

use cni_common::spec::{CniError, Failures, ValidAttachment};

use super::ledger::{Reservation, Reservations};
use super::owner::{Holder, Owner};
use super::store::Store;

/// Releases the addresses of `owner`. Like the reference, releases reservations without an interface name
/// only if no reservation has the interface's name.
///
/// # Errors
/// All addresses that could not be released; every one is tried.
pub fn release(
    store: &Store,
    reservations: &mut Reservations<'_>,
    owner: &Owner<'_>,
) -> Result<(), CniError> {
    let mut held = reservations.held_by(owner)?;
    let exact = owner.holder();
    if held.iter().any(|(_, holder)| *holder == exact) {
        held.retain(|(_, holder)| *holder == exact);
    }
    remove(store, reservations, held)
}

/// Releases the addresses that belong to no attachment in `valid`. Placeholders stay.
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
    remove(store, reservations, stale)
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
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for (ip, holder) in released {
        if failures.keep(store.release(ip)).is_some() {
            reservations.removed(ip, holder);
        }
    }
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use super::*;

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

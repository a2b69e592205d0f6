//! DEL and GC: giving addresses back.

use cni_common::spec::{CniError, Failures, ValidAttachment};

use super::ledger::{Ledger, Reservation};
use super::owner::{Holder, Owner};
use super::store::Store;

/// Gives back what `owner` has. Reservations without an interface only if there are none with it, like the reference.
///
/// # Errors
/// What could not be given back, after everything else was.
pub fn release(store: &Store, ledger: &mut Ledger<'_>, owner: &Owner<'_>) -> Result<(), CniError> {
    let mut held = ledger.held_by(owner)?;
    let exact = owner.holder();
    if held.iter().any(|(_, holder)| *holder == exact) {
        held.retain(|(_, holder)| *holder == exact);
    }
    remove(store, ledger, held)
}

/// Gives back what belongs to no attachment in `valid`. Placeholders stay.
///
/// # Errors
/// What could not be given back, after everything else was.
pub fn collect(store: &Store, ledger: &mut Ledger<'_>, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let stale: Vec<Reservation> =
        ledger.all()?.iter().filter(|(_, holder)| is_stale(holder, valid)).cloned().collect();
    remove(store, ledger, stale)
}

fn is_stale(holder: &Holder, valid: &[ValidAttachment]) -> bool {
    match holder {
        Holder::Attachment { container_id, ifname } => {
            !valid.iter().any(|one| one.container_id == *container_id && one.ifname == *ifname)
        }
        Holder::Container(container_id) => !valid.iter().any(|one| one.container_id == *container_id),
        Holder::Empty | Holder::Foreign => false,
    }
}

fn remove(store: &Store, ledger: &mut Ledger<'_>, reservations: Vec<Reservation>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for (ip, holder) in reservations {
        if failures.keep(store.release(ip)).is_some() {
            ledger.removed(ip, holder);
        }
    }
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stale() {
        let valid = [ValidAttachment { container_id: "a".into(), ifname: "eth0".into() }];
        for (content, stale) in [
            ("a\r\neth0", false),
            ("a\r\neth1", true),
            ("b\r\neth0", true),
            ("a", false),
            ("b", true),
            ("", false),
            ("kept for the printer", false),
        ] {
            assert_eq!(is_stale(&Holder::parse(content.as_bytes()), &valid), stale, "{content:?}");
            let parsed = Holder::parse(content.as_bytes());
            assert_eq!(is_stale(&parsed, &[]), parsed.key().is_some(), "{content:?}");
        }
    }
}

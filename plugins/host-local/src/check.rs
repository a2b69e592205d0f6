//! CHECK: whether the addresses of the result are still reserved.

use std::net::IpAddr;

use cni_common::spec::{AddResult, CniError};

use super::ledger::{Ledger, Reservation};
use super::owner::{Holder, Owner};
use super::set::RangeSet;
use super::store::Store;

/// Compares the result of the whole chain with the reservations. Writes nothing and takes no lock: nobody else touches what
/// a live attachment has.
///
/// The result may hold addresses of other plugins and other interfaces, or none where some plugin hides them, so only what
/// cannot be right is reported.
///
/// # Errors
/// What is missing.
pub fn check(
    store: &Store,
    ledger: &mut Ledger<'_>,
    owner: &Owner<'_>,
    sets: &[RangeSet],
    result: &AddResult,
) -> Result<(), CniError> {
    let mut held = ledger.held_by(owner)?;
    if held.is_empty() {
        // Without the lock, the index may have been caught in the middle of a change. The store decides.
        ledger.all()?;
        held = ledger.held_by(owner)?;
    }
    let id = owner.container_id;
    if held.is_empty() {
        return Err(CniError::internal(format!(
            "host-local: Failed to find address added by container {id}"
        )));
    }
    let ips: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.ip()).collect();
    let is_held = |ip: &IpAddr| held.iter().any(|(held, _)| held == ip);
    if !ips.is_empty() && !ips.iter().any(is_held) {
        let list: Vec<String> = held.iter().map(|(ip, _)| ip.to_string()).collect();
        let list = list.join(", ");
        return Err(CniError::internal(format!(
            "host-local: container {id} has none of the addresses that are reserved for it: {list}"
        )));
    }
    match lost(store, owner, sets, &held, &ips) {
        Some(ip) => Err(CniError::internal(format!(
            "host-local: address {ip} of container {id} is not reserved any more"
        ))),
        None => Ok(()),
    }
}

/// An address out of a set from which the attachment has none reserved, although ADD takes one of each, and that is not
/// reserved for another interface of the container: anybody can get it.
fn lost(
    store: &Store,
    owner: &Owner<'_>,
    sets: &[RangeSet],
    held: &[Reservation],
    ips: &[IpAddr],
) -> Option<IpAddr> {
    let is_the_containers = |ip: IpAddr| match store.holder(ip) {
        Some(Holder::Attachment { container_id, .. } | Holder::Container(container_id)) => {
            container_id == owner.container_id
        }
        _ => false,
    };
    let bare = sets.iter().filter(|set| !held.iter().any(|(ip, _)| set.contains(*ip)));
    let mut exposed = bare.flat_map(|set| ips.iter().copied().filter(|ip| set.contains(*ip)));
    exposed.find(|ip| !is_the_containers(*ip))
}

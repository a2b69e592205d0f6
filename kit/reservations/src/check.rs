//! CHECK: compares the reservations with the addresses of the result.

use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::spec::{AddResult, CniError};

use super::owner::Owner;
use super::reservations::{Reservation, Reservations};
use super::set::RangeSet;
use super::store::Store;

/// Compares the result of the whole chain with the reservations. Writes nothing and takes no lock: no other
/// call changes the reservations of a live attachment.
///
/// The result may contain addresses of other plugins and interfaces, and some plugins leave out all
/// addresses. So only contradictions are errors.
///
/// # Errors
/// The attachment has no reservation, or an address of the result is not reserved.
pub fn check(
    reservations: &mut Reservations,
    attachment: &Attachment<'_>,
    sets: &[RangeSet],
    result: &AddResult,
) -> Result<(), CniError> {
    let mut held = reservations.of(attachment)?;
    if held.is_empty() {
        // Without the lock, this call may have read the index during a change. Read the store instead.
        reservations.all()?;
        held = reservations.of(attachment)?;
    }
    let id = attachment.container_id;
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
            "host-local: prevResult has none of the addresses reserved for container {id}: {list}"
        )));
    }
    match unreserved(&reservations.store, id, sets, &held, &ips) {
        Some(ip) => {
            Err(CniError::internal(format!("host-local: address {ip} of container {id} is not reserved")))
        }
        None => Ok(()),
    }
}

/// Returns an address of the result that another attachment could get: it belongs to a set without any
/// reservation of this attachment, although ADD reserves one address of each set, and it is not reserved for
/// another interface of the container.
fn unreserved(
    store: &Store,
    id: &str,
    sets: &[RangeSet],
    held: &[Reservation],
    ips: &[IpAddr],
) -> Option<IpAddr> {
    let is_the_containers = |ip: IpAddr| match store.owner(ip) {
        Some(Owner::Attachment { container_id, .. } | Owner::Container(container_id)) => container_id == id,
        _ => false,
    };
    let sets_without_reservation = sets.iter().filter(|set| !held.iter().any(|(ip, _)| set.contains(*ip)));
    let mut exposed =
        sets_without_reservation.flat_map(|set| ips.iter().copied().filter(|ip| set.contains(*ip)));
    exposed.find(|ip| !is_the_containers(*ip))
}

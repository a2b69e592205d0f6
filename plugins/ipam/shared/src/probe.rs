//! The key `probe`: asks on a link of the host whether another host has an address that ADD is about to give.
//!
//! Such an address is put aside: it is reserved for a container that does not exist, whose ID names the host. So no ADD tries it again
//! before the next GC, `ferrule inspect addresses` shows it, and its block stays this node's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Context as _, IpConfig};
use ferrule_kernel::netlink::{Link, LinkId, Mac};
use ferrule_kernel::probe;
use ferrule_kit::socket;
use ferrule_reservations::owner::Owner;
use ferrule_reservations::reservations::Reservations;

/// How long to wait for answers, over three questions.
const TIME: Duration = Duration::from_millis(300);
/// What the ID of the container begins with.
const ID: &str = "foreign-";
/// Its interface.
const IFNAME: &str = "probe";
/// The most addresses of a network that are put aside on this node: a host that answers for all addresses must not take all.
const MOST: usize = 32;

/// The hosts that have an address.
pub(crate) type Owners = BTreeMap<IpAddr, Mac>;

/// The link with this name.
///
/// # Errors
/// Code 7 without such a link.
pub(crate) fn link(name: &str) -> Result<Link, CniError> {
    let found = socket::route()?.link(LinkId::Name(name)).context(|| format!("find the link {name}"))?;
    found.ok_or_else(|| CniError::invalid_config(format!("ipam.probe: there is no link {name}")))
}

/// The hosts on the link that have one of these addresses.
///
/// # Errors
/// As [`link`] and [`probe::probe`].
pub(crate) fn owners(name: &str, ips: &[IpConfig]) -> Result<Owners, CniError> {
    let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.address.ip()).collect();
    probe::probe(&link(name)?, &ips, TIME)
        .map_err(|error| CniError::internal(format!("ask on {name} who has {ips:?}: {error}")))
}

/// Releases what the attachment has reserved, and reserves the addresses of foreign hosts.
///
/// # Errors
/// Code 5 if the store cannot be read or changed.
pub(crate) fn put_aside(
    reservations: &mut Reservations,
    attachment: &Attachment<'_>,
    owners: &Owners,
) -> Result<(), CniError> {
    let is_aside = |owner: &Owner| matches!(owner, Owner::Attachment { container_id, .. } if container_id.starts_with(ID));
    let aside = reservations.all()?.iter().filter(|(_, owner)| is_aside(owner)).count();
    for (ip, owner) in reservations.of(attachment)? {
        reservations.release(ip, owner)?;
    }
    for (ip, mac) in owners.iter().take(MOST.saturating_sub(aside)) {
        let container_id = format!("{ID}{}", mac.to_string().replace(':', ""));
        let foreign = Attachment { network: attachment.network, container_id: &container_id, ifname: IFNAME };
        let mut pending = reservations.store.pending_file(&foreign)?;
        if reservations.store.reserve(&mut pending, *ip)? {
            reservations.added(*ip, Owner::of(&foreign));
        }
    }
    Ok(())
}

/// The addresses with their hosts, for a text.
pub(crate) fn text(owners: &Owners) -> String {
    owners.iter().map(|(ip, mac)| format!("{ip} ({mac})")).collect::<Vec<_>>().join(", ")
}

//! Removes the host ports of dead owners in any layout, for the operator's tool.
//!
//! Each function asks `are_dead` once it has found some of the owners, for one answer for each of all, and returns for each whether
//! it was there and is removed.

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_kernel::netlink::Socket;
use ferrule_kit::{dead, lock};

use crate::{flows, iptables, nft, reference};

/// Removes host ports of our table by the labels of their owners.
///
/// # Errors
/// Code 999 if the kernel refuses a request.
pub fn labelled(
    socket: &mut Socket,
    labels: &[String],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let (removed, host_ports) = nft::delete_dead(socket, labels, are_dead)?;
    flows::delete_after_removal(socket, &host_ports);
    Ok(removed)
}

/// Removes host ports of these containers from the tables of the reference's nftables backend.
///
/// # Errors
/// Code 999 if the kernel refuses a request.
pub fn of_reference(
    socket: &mut Socket,
    containers: &[String],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let (removed, host_ports) = reference::delete_dead(socket, containers, are_dead)?;
    flows::delete_after_removal(socket, &host_ports);
    Ok(removed)
}

/// Removes the chains of these containers from iptables under its lock. An owner is a network and a container: the interface is not part
/// of the names.
///
/// # Errors
/// Code 11 if another process keeps the lock; code 999 if a request or a program fails.
pub fn chains(
    socket: &mut Socket,
    owners: &[(String, String)],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let _lock = lock::iptables()?;
    let owners =
        owners.iter().map(|(network, container_id)| Attachment { network, container_id, ifname: "" });
    let owners: Vec<Attachment<'_>> = owners.collect();
    let found = owners.iter().map(|owner| iptables::has(socket, owner)).collect::<Result<_, _>>()?;
    let removed = dead::confirmed(found, are_dead);
    for (owner, _) in owners.iter().zip(&removed).filter(|(_, removed)| **removed) {
        iptables::delete(socket, owner, true)?;
    }
    Ok(removed)
}

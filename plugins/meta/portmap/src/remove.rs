//! Removes the host ports of one dead owner in any layout, for the operator's tool.

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_kernel::netlink::Socket;
use ferrule_kit::lock;

use crate::{flows, iptables, nft, reference};

/// Removes a container's host ports of our table, if `is_dead` says so. Returns whether it has removed any, as the functions
/// below.
///
/// # Errors
/// Code 999 if the kernel refuses a request.
pub fn labelled(
    socket: &mut Socket,
    label: &str,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let removed = nft::delete_if(socket, label, &[], is_dead)?;
    flows::delete_after_removal(socket, removed.as_deref().unwrap_or_default());
    Ok(removed.is_some())
}

/// Removes a container's host ports from the tables of the reference's nftables backend, if `is_dead` says so.
///
/// # Errors
/// Code 999 if the kernel refuses a request.
pub fn of_reference(
    socket: &mut Socket,
    container_id: &str,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let removed = reference::delete_if(socket, container_id, is_dead)?;
    flows::delete_after_removal(socket, removed.as_deref().unwrap_or_default());
    Ok(removed.is_some())
}

/// Removes a container's chains from iptables under its lock, if `is_dead` says so.
///
/// # Errors
/// Code 11 if another process keeps the lock; code 999 if a request or a program fails.
pub fn chains(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let _lock = lock::iptables()?;
    if !iptables::has(socket, owner)? || !is_dead() {
        return Ok(false);
    }
    iptables::delete(socket, owner, true).map(|()| true)
}

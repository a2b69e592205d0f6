//! For the operator's tool: removes one address from all backends.

use std::net::IpAddr;

use cni_common::spec::{CniError, Failures, NetConf};
use ferrule_kernel::netlink::Socket;
use ferrule_kit::lock;

use crate::config::Conf;
use crate::nft::{self, Owned};
use crate::{iptables, verbs};

/// Removes an address that this owner has in the table, if `is_dead` says so; also from iptables and firewalld, if one of
/// them opens it. Returns whether it was there.
///
/// # Errors
/// Code 11 if another process keeps the lock for iptables; all steps that failed.
pub fn remove(
    socket: &mut Socket,
    owned: &Owned,
    owner: &str,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    if !owned.is_pod() {
        let lock = lock::iptables()?;
        if !is_dead() {
            return Ok(false);
        }
        let mut failures = Failures::default();
        let conf = removal()?;
        let node = nft::node(socket, conf.mark_bit)?;
        failures.keep(iptables::delete(socket, &node, &[owned.address], true));
        verbs::remove_sources(&conf, std::slice::from_ref(owned));
        drop(lock);
        failures.into_result()?;
    }
    nft::delete_if(socket, owned, owner, is_dead)
}

/// Removes the reference's rules of an address from iptables under its lock, if `is_dead` says so.
///
/// # Errors
/// As [`remove`].
pub fn remove_reference(
    socket: &mut Socket,
    address: IpAddr,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let _lock = lock::iptables()?;
    if !iptables::addresses(socket)?.contains(&address) || !is_dead() {
        return Ok(false);
    }
    let node = nft::node(socket, removal()?.mark_bit)?;
    iptables::delete(socket, &node, &[address], true).map(|()| true)
}

/// A configuration with the default of every key.
fn removal() -> Result<Conf, CniError> {
    Ok(Conf::of_removal(&NetConf::parse(b"{\"name\":\"any\"}".to_vec())?))
}

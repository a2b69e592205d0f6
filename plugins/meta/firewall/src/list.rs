//! For the operator's tool: removes addresses from all backends.

use std::net::IpAddr;

use cni_common::spec::{CniError, Failures, NetConf};
use ferrule_kernel::netlink::Socket;
use ferrule_kit::{dead, lock};

use crate::config::Conf;
use crate::nft::{self, Owned};
use crate::{iptables, verbs};

/// Removes addresses that only the table opens, each with the label of its owner. `are_dead` is asked once some of them are found, for one
/// answer for each. Returns for each whether it was there and is removed.
///
/// # Errors
/// The kernel's error.
pub fn remove(
    socket: &mut Socket,
    owned: &[(IpAddr, String)],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    nft::delete_dead(socket, owned, are_dead)
}

/// Removes addresses that iptables or firewalld opens for their owners, the label beside each, there and from the table. `are_dead` is
/// asked under the lock, for one answer for each. Returns for each whether it was there and is removed.
///
/// # Errors
/// Code 11 if another process keeps the lock for iptables; all steps that failed.
pub fn remove_opened(
    socket: &mut Socket,
    opened: &[(Owned, String)],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let lock = lock::iptables()?;
    let answers = are_dead();
    let dead = opened.iter().zip(&answers).filter(|(_, is_dead)| **is_dead);
    let dead: Vec<Owned> = dead.map(|((owned, _), _)| owned.clone()).collect();
    if dead.is_empty() {
        return Ok(vec![false; opened.len()]);
    }
    let addresses: Vec<IpAddr> = dead.iter().map(|owned| owned.address).collect();
    let mut failures = Failures::default();
    let conf = removal()?;
    let node = nft::node(socket, conf.mark_bit)?;
    failures.keep(iptables::delete(socket, &node, &addresses, true));
    verbs::remove_sources(&conf, &dead);
    drop(lock);
    failures.into_result()?;
    let labelled: Vec<(IpAddr, String)> =
        opened.iter().map(|(owned, label)| (owned.address, label.clone())).collect();
    let mut still_dead = || answers.iter().zip(are_dead()).map(|(before, now)| *before && now).collect();
    nft::delete_dead(socket, &labelled, &mut still_dead)
}

/// As [`remove`], of the reference's rules of addresses, from iptables under its lock.
///
/// # Errors
/// Code 11 if another process keeps the lock for iptables; all steps that failed.
pub fn remove_reference(
    socket: &mut Socket,
    addresses: &[IpAddr],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let _lock = lock::iptables()?;
    let found = iptables::addresses(socket)?;
    let found: Vec<bool> = addresses.iter().map(|address| found.contains(address)).collect();
    let is_there = found.contains(&true);
    let removed = dead::confirmed(found, are_dead);
    if is_there {
        let dead = addresses.iter().zip(&removed).filter(|(_, removed)| **removed);
        let dead: Vec<IpAddr> = dead.map(|(address, _)| *address).collect();
        let node = nft::node(socket, removal()?.mark_bit)?;
        iptables::delete(socket, &node, &dead, true)?;
    }
    Ok(removed)
}

/// A configuration with the default of every key.
fn removal() -> Result<Conf, CniError> {
    Ok(Conf::of_removal(&NetConf::parse(b"{\"name\":\"any\"}".to_vec())?))
}

//! The table of our own, [`layout`]: the nftables backend, the policies of bridges, and the owner of every address.
//!
//! An address that iptables or firewalld opens is in the table too, because their rules have no owner: DEL without
//! `prevResult`, GC, and a late DEL after the address went to another container need to know it.
//!
//! # Cost
//!
//! ADD looks up chains and elements by name and key, and commits one batch: four round trips, also with 5,000
//! containers. Only DEL without `prevResult`, and GC, list the sets.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Element, Error, elements, find_elements, generation};
use ferrule_kernel::retry::{Limit, retry};
use std::net::IpAddr;

use crate::plan::Plan;

mod bridges;
mod check;
pub mod layout;
mod owners;
mod table;

pub use bridges::delete_unused as delete_unused_bridges;
pub use check::{check, check_bridge};
pub use owners::{By, Owned};
pub use table::{Node, filter_table, look};

use layout::{LEGACY, TABLE, link_key, others, pods};

/// The attempts at a change. ADD fails if another process changes the same objects at the same time, a removal if any ruleset
/// changes.
pub const ATTEMPTS: Limit = Limit { attempts: 200, changes: "ruleset changes" };

/// Adds the plan's addresses, and the policy of its bridge. Another container that had one of the addresses loses it: its
/// DEL was lost, because IPAM gives an address to one container at a time.
///
/// # Errors
/// Code 999 if the kernel refuses the batch, or after 200 concurrent changes.
pub fn add(socket: &mut Socket, node: &Node, plan: &Plan, by: &By) -> Result<(), CniError> {
    let mut is_complete = node.is_complete;
    let outcome = retry(ATTEMPTS, Error::is_conflict, || {
        let mut batch = Batch::new();
        if !is_complete {
            table::establish(&mut batch, plan.mark_bit);
        }
        owners::change(socket, &mut batch, plan, by)?;
        bridges::change(socket, &mut batch, plan)?;
        // The table may be gone since it was looked up.
        batch.commit(socket).inspect_err(|_| is_complete = false)
    });
    outcome.context(|| format!("add the container to table {TABLE}"))
}

/// What the table knows about these addresses, in their order.
///
/// # Errors
/// Code 999 if the kernel refuses the lookup.
pub fn owned(socket: &mut Socket, addresses: &[IpAddr]) -> Result<Vec<Owned>, CniError> {
    owners::look_up(socket, addresses).context(|| format!("look up addresses in table {TABLE}"))
}

/// Lists the addresses whose owner label `is_wanted` accepts.
///
/// # Errors
/// Code 999 if the kernel refuses to list a set.
pub fn list(socket: &mut Socket, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Owned>, CniError> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        for set in [pods(family), others(family)] {
            let all =
                elements(socket, TABLE, set).context(|| format!("list set {set:?} of table {TABLE}"))?;
            let wanted = all.iter().filter(|element| element.comment.as_deref().is_some_and(&is_wanted));
            found.extend(wanted.filter_map(|element| Owned::of_element(set, element)));
        }
    }
    Ok(found)
}

/// Deletes addresses from the table: those of this owner, or without one those of the owner that was found. What another
/// container has got in the meantime stays: the kernel refuses a batch after any change since the lookup, such as an ADD.
///
/// # Errors
/// Code 999 if the kernel refuses the batch, or after 200 concurrent changes.
pub fn delete(socket: &mut Socket, owned: &[Owned], owner: Option<&str>) -> Result<(), CniError> {
    let outcome = retry(ATTEMPTS, Error::is_outdated, || {
        for part in owned.chunks(Batch::ROOM / 2) {
            let addresses: Vec<IpAddr> = part.iter().map(|owned| owned.address).collect();
            let mut batch = Batch::new();
            let generation = generation(socket)?;
            for (now, then) in owners::look_up(socket, &addresses)?.iter().zip(part) {
                now.delete_if(&mut batch, |label| {
                    owner.map_or_else(|| then.labels().any(|then| then == label), |owner| owner == label)
                });
            }
            batch.commit_at(socket, generation)?;
        }
        Ok(())
    });
    outcome.context(|| format!("remove the container from table {TABLE}"))
}

/// Deletes an address from the table, if this owner still has it and `is_dead` says so. `is_dead` is asked at a generation
/// of the ruleset, and the kernel refuses the batch after any change of it, such as an ADD.
///
/// # Errors
/// Code 999 if the kernel refuses the batch, or after 200 concurrent changes.
pub fn delete_if(
    socket: &mut Socket,
    address: IpAddr,
    owner: &str,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let outcome = retry(ATTEMPTS, Error::is_outdated, || {
        let generation = generation(socket)?;
        let mut batch = Batch::new();
        for now in owners::look_up(socket, &[address])? {
            now.delete_if(&mut batch, |label| label == owner);
        }
        if batch.is_empty() || !is_dead() {
            return Ok(false);
        }
        batch.commit_at(socket, generation).map(|()| true)
    });
    outcome.context(|| format!("remove {address} from table {TABLE}"))
}

/// Whether the chain `FORWARD` of iptables-legacy has our rules, as far as this table knows.
///
/// # Errors
/// Code 999 if the kernel refuses the lookup.
pub fn is_legacy_open(socket: &mut Socket, family: IpFamily) -> Result<bool, CniError> {
    let key = legacy_key(family);
    let found =
        find_elements(socket, TABLE, &[(LEGACY, &key)]).context(|| format!("look up set {LEGACY:?}"))?;
    Ok(found.iter().any(Option::is_some))
}

/// Notes that the chain `FORWARD` of iptables-legacy has our rules.
///
/// # Errors
/// Code 999 if the kernel refuses the batch.
pub fn note_legacy(socket: &mut Socket, family: IpFamily) -> Result<(), CniError> {
    let mut batch = Batch::new();
    batch.add_elements(TABLE, LEGACY, &[Element::new(legacy_key(family))]);
    match batch.commit(socket) {
        Err(error) if error.is_taken() => Ok(()),
        outcome => outcome.context(|| format!("add to set {LEGACY:?} of table {TABLE}")),
    }
}

fn legacy_key(family: IpFamily) -> Vec<u8> {
    link_key(match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    })
}

/// The key of an address in a set.
fn key(address: IpAddr) -> Vec<u8> {
    octets(address)
}

//! The table of our own, [`layout`]: the nftables backend, the policies of bridges, and the owner of every address.
//!
//! An address that iptables or firewalld opens is in the table too, because their rules have no owner: DEL without
//! `prevResult`, GC, and a late DEL after the address went to another container need to know it.
//!
//! # Cost
//!
//! ADD reads chains and elements by name and key, and commits one batch: four round trips, also with 5,000
//! containers. Only DEL without `prevResult`, and GC, list the sets.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{ATTEMPTS, Batch, Element, Error, change, find_elements, link_key};
use ferrule_kernel::retry::retry;

use crate::plan::Plan;

mod addresses;
mod bridges;
pub mod layout;
mod table;

pub use addresses::{AT_ONCE, By, Owned, delete, delete_dead, list, owned};
pub use bridges::delete_unused as delete_unused_bridges;
pub use table::{Node, node};

use layout::{LEGACY, TABLE};

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
            table::establish(&mut batch, plan.conf.mark_bit);
        }
        addresses::add(socket, &mut batch, plan, by)?;
        bridges::set_policy(socket, &mut batch, plan)?;
        // The table may be gone since it was looked up.
        batch.commit(socket).inspect_err(|_| is_complete = false)
    });
    outcome.context(|| format!("add the container to table {TABLE}"))
}

/// As [`add`] for a container that runs, at the generation of the lookup. Chains that are right stay, even if another process
/// has changed their number of uses.
///
/// # Errors
/// Code 999 with the name of another container that has one of the addresses; otherwise as [`add`].
pub fn repair(socket: &mut Socket, _: &Node, plan: &Plan, by: &By) -> Result<(), CniError> {
    let outcome = change(socket, |socket, batch| {
        if let Err(error) = addresses::ensure_own(socket, plan)? {
            return Ok(Err(error));
        }
        if table::check(socket, plan.conf.mark_bit).is_err() {
            table::establish(batch, plan.conf.mark_bit);
        }
        addresses::add(socket, batch, plan, by)?;
        bridges::set_policy(socket, batch, plan).map(Ok)
    });
    outcome.context(|| format!("add the container to table {TABLE}"))?
}

/// Checks the table: its chains, the addresses, and the policy of the bridge.
///
/// # Errors
/// Code 999 with the first object that is missing or altered.
pub fn check(socket: &mut Socket, plan: &Plan, owned: &[Owned], by: &By) -> Result<(), CniError> {
    addresses::check(plan, owned, by)?;
    table::check(socket, plan.conf.mark_bit)?;
    bridges::check(socket, plan)
}

/// Whether the chain `FORWARD` of iptables-legacy has our rules, as far as this table knows.
///
/// # Errors
/// Code 999 if the kernel refuses to read it.
pub fn is_legacy_open(socket: &mut Socket, family: IpFamily) -> Result<bool, CniError> {
    let key = legacy_key(family);
    let found = find_elements(socket, TABLE, &[(LEGACY, &key)]).context(|| format!("read set {LEGACY:?}"))?;
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

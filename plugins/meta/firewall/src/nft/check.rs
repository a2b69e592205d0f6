//! CHECK of the table: every object that the plan needs.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Rule, chains, rules};
use ferrule_kit::check::ensure;
use ferrule_kit::owner::describe;

use super::bridges::{self, SETS};
use super::layout::{self, ADMIN, BASE_CHAINS, TABLE};
use super::{By, Owned};
use crate::plan::Plan;

const STEP: &str = "check the firewall";

/// Checks the table: its chains, the addresses, and the policy of the bridge.
///
/// # Errors
/// Code 999 with the first object that is missing or altered.
pub fn check(socket: &mut Socket, plan: &Plan, owned: &[Owned], by: &By) -> Result<(), CniError> {
    for owned in owned {
        let is_there = *by != By::Nftables || owned.is_pod_of(&plan.label);
        let address = owned.address;
        ensure(is_there && !owned.is_foreign(&plan.label), || match owned.labels().next() {
            Some(other) => format!("address {address} belongs to {}", describe(other)),
            None => format!("address {address} is missing in the sets of table {TABLE}"),
        })?;
    }
    let own = layout::chains(plan.mark_bit);
    let wanted: Vec<_> =
        own.iter().map(|(name, ..)| name.as_str()).chain([ADMIN]).map(|name| (TABLE, name)).collect();
    for (chain, (_, name)) in chains(socket, &wanted).context(|| STEP)?.into_iter().zip(&wanted) {
        let base = BASE_CHAINS.iter().find(|(base, _)| base == name).map(|(_, hook)| hook);
        let is_right =
            chain.is_some_and(|chain| base.is_none_or(|hook| chain.base.is_some_and(|base| base.is(hook))));
        ensure(is_right, || altered(name))?;
    }
    for (name, wanted, _) in &own {
        let found = rules(socket, TABLE, name).context(|| STEP)?;
        let is_same = found.iter().map(Rule::decode).eq(wanted.iter().cloned().map(Some));
        ensure(is_same, || altered(name))?;
    }
    check_bridge(socket, plan)
}

/// Checks that the plan's bridge has its policy.
///
/// # Errors
/// Code 999 with the first set in which the bridge is missing.
pub fn check_bridge(socket: &mut Socket, plan: &Plan) -> Result<(), CniError> {
    let Some((bridge, policy)) = &plan.bridge else { return Ok(()) };
    for (found, set) in bridges::look_up(socket, &[bridge.as_str()]).context(|| STEP)?.iter().zip(SETS) {
        ensure(found.is_some() || !bridges::is_in(set, *policy), || {
            format!("bridge {bridge:?} is missing in set {set:?} of table {TABLE} (ingressPolicy {policy})")
        })?;
    }
    Ok(())
}

fn altered(chain: &str) -> String {
    format!("chain {chain:?} of table {TABLE} is missing or altered")
}

//! CHECK: compares the host ports, and all rules that they depend on, with the plan.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Rule, rules};
use ferrule_kit::owner;

use crate::plan::{HostPort, Key, Plan, masquerades};

use super::establish::gate_of;
use super::layout::{OWNERS, PREROUTING, TABLE, chains};
use super::list::{self, Present};
use super::owner_metadata::{host_port_count, is_unfinished};
use super::{Gate, Owned};

const STEP: &str = "check host ports";

/// Finds the owner and the plan's host ports.
///
/// # Errors
/// Code 999 if the kernel refuses to read an element.
pub fn find(socket: &mut Socket, plan: &Plan<'_>) -> Result<Present, CniError> {
    let keys: Vec<&Key> = plan.host_ports.iter().map(|host_port| &host_port.key).collect();
    list::find_present(socket, &plan.label, &keys).context(|| STEP)
}

/// Compares the table with the plan, and returns the table's gate. `present` comes from [`find`].
///
/// # Errors
/// Code 999 with the first object that is missing, altered or unexpected.
pub fn check(socket: &mut Socket, plan: &Plan<'_>, present: Present) -> Result<Gate, CniError> {
    check_host_ports(socket, plan, present)?;
    let altered =
        |chain: &str| CniError::internal(format!("chain {chain:?} of table {TABLE} is missing or altered"));
    let prerouting = rules(socket, TABLE, PREROUTING).context(|| STEP)?;
    let gate = gate_of(&prerouting).ok_or_else(|| altered(PREROUTING))?;
    for chain in chains(gate, &masquerades(&plan.host_ports), &plan.conditions) {
        let found = match chain.name.as_str() {
            PREROUTING => prerouting.iter().map(Rule::decode).collect(),
            // The chain for conditions, if the plan has none.
            _ if chain.rules.is_empty() => continue,
            name => list::rules_of(socket, name).context(|| STEP)?,
        };
        if !chain.is_right(&found) {
            return Err(altered(&chain.name));
        }
    }
    Ok(gate)
}

fn check_host_ports(socket: &mut Socket, plan: &Plan<'_>, present: Present) -> Result<(), CniError> {
    let label = &plan.label;
    let Present { owner: element, host_ports } = present;
    for (HostPort { key, .. }, found) in plan.host_ports.iter().zip(&host_ports) {
        let Some(found) = found else {
            let map = key.map(true).name();
            return Err(CniError::internal(format!(
                "host port {key} has no element in map {map:?} of table {TABLE}"
            )));
        };
        // Another interface of the same container may have the host port.
        if found.label != *label && !owner::is_of(&found.label, plan.owner.container_id) {
            let other = owner::describe(&found.label);
            return Err(CniError::internal(format!("host port {key} is held by {other}")));
        }
    }
    let Some(element) = element else {
        let owner = owner::describe(label);
        return Err(CniError::internal(format!("{owner} is not in set {OWNERS:?} of table {TABLE}")));
    };
    if is_unfinished(&element) {
        let owner = owner::describe(label);
        return Err(CniError::internal(format!("the repair of the host ports of {owner} did not end")));
    }
    let mut own: Vec<Owned> =
        host_ports.into_iter().flatten().filter(|owned| owned.label == *label).collect();
    if element.metadata.as_deref().and_then(host_port_count) != Some(own.len()) {
        let all = list::list_where(socket, |other| other == label).context(|| STEP)?;
        own = list::with_marks(socket, all).context(|| STEP)?;
    }
    own.iter().try_for_each(|owned| check_host_port(&owned.host_port, plan))
}

fn check_host_port(found: &HostPort, plan: &Plan<'_>) -> Result<(), CniError> {
    let HostPort { key, target, .. } = found;
    let Some(wanted) = plan.host_ports.iter().find(|wanted| wanted.key == *key) else {
        return Err(CniError::internal(format!(
            "host port {key} leads to {target}, but the configuration does not have it"
        )));
    };
    if wanted.target != *target {
        let wanted = wanted.target;
        return Err(CniError::internal(format!("host port {key} leads to {target} instead of {wanted}")));
    }
    let chain =
        |host_port: &HostPort| host_port.masquerade.as_ref().map(|masquerade| masquerade.chain_name());
    if chain(wanted) != chain(found) {
        let map = key.map(false).name();
        return Err(CniError::internal(format!(
            "host port {key} has no element or a wrong one in map {map:?} of table {TABLE}"
        )));
    }
    Ok(())
}

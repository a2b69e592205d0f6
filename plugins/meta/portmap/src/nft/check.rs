//! CHECK: compares the host ports, and all rules that they depend on, with the plan.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Expr;
use ferrule_kit::owner;

use crate::plan::{HostPort, Key, Plan};
use cni_common::plugin::Attachment;

use super::establish::Conditions;
use super::gate::{TableGate, without_gate};
use super::layout::{
    FIXED_CHAINS, NETWORKS, OUTPUT, OWNERS, POSTROUTING, PREROUTING, TABLE, fixed_rules, masquerade,
    masquerade_chains,
};
use super::list;
use super::maps::{condition_rules, map_set_rules};

const STEP: &str = "check host ports";

/// Whether the owner has host ports in the table.
///
/// # Errors
/// Code 999 if the kernel refuses the lookup.
pub fn is_present(socket: &mut Socket, owner: &Attachment<'_>) -> Result<bool, CniError> {
    Ok(list::owner(socket, &owner::label(owner)).context(|| STEP)?.is_some())
}

/// Compares the table with the plan. `gate` is the gate that the table has, see [`gate`](super::gate()).
///
/// # Errors
/// Code 999 with the first object that is missing, altered or unexpected.
pub fn check(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    plan: &Plan,
    conditions: &[Conditions],
    gate: TableGate,
) -> Result<(), CniError> {
    check_host_ports(socket, owner, plan)?;
    if let TableGate::Is(gate) = gate
        && !list::is_same(&read(socket, &gate.chain_name())?, &gate.rules())
    {
        return Err(altered(&gate.chain_name()));
    }
    for fixed in &FIXED_CHAINS {
        let found = read(socket, fixed.name)?;
        let wanted = match fixed.name {
            PREROUTING | OUTPUT if gate == TableGate::NoGate => vec![without_gate()],
            name => fixed_rules(name, gate.or_local(), &[]),
        };
        let is_right = match fixed.name {
            NETWORKS => true,
            POSTROUTING => wanted.iter().all(|rule| found.contains(&Some(rule.clone()))),
            _ => list::is_same(&found, &wanted),
        };
        if !is_right {
            return Err(altered(fixed.name));
        }
    }
    for masquerading in plan.masquerades() {
        for (name, wanted) in masquerade_chains(&masquerading) {
            if !list::is_same(&read(socket, &name)?, &wanted) {
                return Err(altered(&name));
            }
        }
        if let Some(mark) = masquerading.mark()
            && !read(socket, POSTROUTING)?.contains(&Some(masquerade(mark.number())))
        {
            return Err(altered(POSTROUTING));
        }
    }
    for network in conditions {
        let Some(chain) = network.map_set.chain() else { continue };
        if !list::is_same(&read(socket, &chain)?, &map_set_rules(&network.map_set)) {
            return Err(altered(&chain));
        }
        let found = read(socket, NETWORKS)?;
        let wanted = condition_rules(&network.map_set, &network.alternatives);
        if !wanted.iter().all(|rule| found.contains(&Some(rule.clone()))) {
            return Err(altered(NETWORKS));
        }
    }
    Ok(())
}

fn check_host_ports(socket: &mut Socket, owner: &Attachment<'_>, plan: &Plan) -> Result<(), CniError> {
    let label = owner::label(owner);
    let keys: Vec<&Key> = plan.host_ports.iter().map(|host_port| &host_port.key).collect();
    for (wanted, found) in plan.host_ports.iter().zip(list::look_up(socket, &keys).context(|| STEP)?) {
        let key = &wanted.key;
        let Some(found) = found else {
            let map = key.map(true).name;
            return Err(CniError::internal(format!(
                "host port {key} has no element in map {map:?} of table {TABLE}"
            )));
        };
        // Another interface of the same container may have the host port.
        if found.label != label && !owner::is_of(&found.label, owner.container_id) {
            let holder = owner::describe(&found.label);
            return Err(CniError::internal(format!("host port {key} is held by {holder}")));
        }
    }
    let own = match list::owner(socket, &label).context(|| STEP)? {
        Some(element) => list::dnat_elements_of(socket, &label, &element, &keys).context(|| STEP)?,
        None => {
            let owner = owner::describe(&label);
            return Err(CniError::internal(format!("{owner} is not in set {OWNERS:?} of table {TABLE}")));
        }
    };
    let own = list::with_masquerades(socket, own).context(|| STEP)?;
    for found in &own {
        check_host_port(found, plan)?;
    }
    Ok(())
}

fn check_host_port(found: &HostPort, plan: &Plan) -> Result<(), CniError> {
    let (key, target) = (&found.key, found.target);
    let Some(wanted) = plan.host_ports.iter().find(|wanted| wanted.key == *key) else {
        return Err(CniError::internal(format!(
            "host port {key} leads to {target}, but the configuration does not have it"
        )));
    };
    if wanted.target != target {
        let wanted = wanted.target;
        return Err(CniError::internal(format!("host port {key} leads to {target} instead of {wanted}")));
    }
    if wanted.masquerade.chain_name() != found.masquerade.chain_name() {
        let map = key.map(false).name;
        return Err(CniError::internal(format!(
            "host port {key} has no element or a wrong one in map {map:?} of table {TABLE}"
        )));
    }
    Ok(())
}

fn read(socket: &mut Socket, chain: &str) -> Result<Vec<Option<Vec<Expr>>>, CniError> {
    list::rules_of(socket, chain).context(|| STEP)
}

fn altered(chain: &str) -> CniError {
    CniError::internal(format!("chain {chain:?} of table {TABLE} is missing or altered"))
}

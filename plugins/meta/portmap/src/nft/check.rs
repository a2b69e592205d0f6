//! CHECK: compares the host ports, and all rules that they depend on, with the plan.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Expr, Rule, rules};
use ferrule_kit::owner;

use crate::plan::{HostPort, Key, Plan};
use cni_common::plugin::Attachment;

use super::establish::{Conditions, gate_of};
use super::gate::{TableGate, without_gate};
use super::layout::{
    FIXED_CHAINS, NETWORKS, OUTPUT, OWNERS, POSTROUTING, PREROUTING, TABLE, fixed_rules, masquerade,
    masquerade_chains,
};
use super::list::{self, Elements};
use super::maps::{condition_rules, map_set_rules};
use super::owner_metadata::host_port_count;

const STEP: &str = "check host ports";

/// Looks up the owner and the plan's host ports.
///
/// # Errors
/// Code 999 if the kernel refuses the lookup.
pub fn find(socket: &mut Socket, owner: &Attachment<'_>, plan: &Plan) -> Result<Elements, CniError> {
    list::owner_and_elements(socket, &owner::label(owner), &keys(plan)).context(|| STEP)
}

fn keys(plan: &Plan) -> Vec<&Key> {
    plan.host_ports.iter().map(|host_port| &host_port.key).collect()
}

/// The rules of [`PREROUTING`], and the gate to which they jump.
pub struct Prerouting {
    /// The gate that the table has.
    pub gate: TableGate,
    rules: Rules,
}

/// Decoded rules of a chain; `None` for one that cannot be decoded.
type Rules = Vec<Option<Vec<Expr>>>;

/// Reads the rules of [`PREROUTING`].
///
/// # Errors
/// Code 999 if the kernel refuses to list the rules.
pub fn prerouting(socket: &mut Socket) -> Result<Prerouting, CniError> {
    let rules = rules(socket, TABLE, PREROUTING).context(|| STEP)?;
    Ok(Prerouting { gate: gate_of(&rules), rules: rules.iter().map(Rule::decode).collect() })
}

/// Compares the table with the plan. `found` and `prerouting` come from [`find`] and [`prerouting`].
///
/// # Errors
/// Code 999 with the first object that is missing, altered or unexpected.
pub fn check(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    plan: &Plan,
    conditions: &[Conditions],
    found: Elements,
    prerouting: &Prerouting,
) -> Result<(), CniError> {
    let gate = prerouting.gate;
    check_host_ports(socket, owner, plan, found)?;
    if let TableGate::Is(gate) = gate
        && !list::is_same(&read(socket, &gate.chain_name())?, &gate.rules())
    {
        return Err(altered(&gate.chain_name()));
    }
    let postrouting = read(socket, POSTROUTING)?;
    // Only networks add rules to NETWORKS.
    for fixed in FIXED_CHAINS.iter().filter(|fixed| fixed.name != NETWORKS) {
        let wanted = match fixed.name {
            PREROUTING | OUTPUT if gate == TableGate::NoGate => vec![without_gate()],
            name => fixed_rules(name, gate.or_local(), &[]),
        };
        let is_right = match fixed.name {
            POSTROUTING => wanted.iter().all(|rule| postrouting.contains(&Some(rule.clone()))),
            PREROUTING => list::is_same(&prerouting.rules, &wanted),
            name => list::is_same(&read(socket, name)?, &wanted),
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
        if let Some(mark) = masquerading.mark() {
            let bit = mark.value().trailing_zeros();
            let wanted = u8::try_from(bit).map(masquerade).unwrap_or_default();
            if !postrouting.contains(&Some(wanted)) {
                return Err(altered(POSTROUTING));
            }
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

fn check_host_ports(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    plan: &Plan,
    elements: Elements,
) -> Result<(), CniError> {
    let label = owner::label(owner);
    let Elements { owner: element, dnat, marks } = elements;
    for (wanted, found) in plan.host_ports.iter().zip(&dnat) {
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
    let Some(element) = element else {
        let owner = owner::describe(&label);
        return Err(CniError::internal(format!("{owner} is not in set {OWNERS:?} of table {TABLE}")));
    };
    let own = dnat.into_iter().zip(marks).filter_map(|(dnat, mark)| Some((dnat?, mark)));
    let own = own.filter(|(dnat, _)| dnat.label == label);
    let mut own: Vec<HostPort> = own.map(|(dnat, mark)| dnat.with_mark(mark.as_ref())).collect();
    if element.metadata.as_deref().and_then(host_port_count) != Some(own.len()) {
        let all = list::dnat_elements(socket, |other| other == label).context(|| STEP)?;
        own = list::with_masquerades(socket, all).context(|| STEP)?;
    }
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

fn read(socket: &mut Socket, chain: &str) -> Result<Rules, CniError> {
    list::rules_of(socket, chain).context(|| STEP)
}

fn altered(chain: &str) -> CniError {
    CniError::internal(format!("chain {chain:?} of table {TABLE} is missing or altered"))
}

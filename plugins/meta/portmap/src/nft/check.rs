//! CHECK: every entry and every rule that it depends on, compared step by step.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Expr;

use crate::owner;
use crate::plan::{Entry, Key, Plan};
use cni_common::plugin::Attachment;

use super::establish::Conditions;
use super::gate::{TableGate, without_gate};
use super::layout::{
    FIXED, NETWORKS, OUTPUT, POSTROUTING, PREROUTING, TABLE, fixed_rules, masquerade, masquerade_chains,
};
use super::list;
use super::maps::{condition_rules, realm_rules};

const STEP: &str = "check host ports";

/// Whether the owner has entries in the table, whichever.
///
/// # Errors
/// Code 999 if the table cannot be read.
pub fn is_present(socket: &mut Socket, owner: &Attachment<'_>) -> Result<bool, CniError> {
    Ok(list::owner(socket, &owner::label(owner)).context(|| STEP)?.is_some())
}

/// Compares what is there with the plan. `gate` is the table's, see [`gate`](super::gate()).
///
/// # Errors
/// Code 999 with the first thing that is missing, altered or too much.
pub fn check(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    plan: &Plan,
    conditions: &[Conditions],
    gate: TableGate,
) -> Result<(), CniError> {
    check_entries(socket, owner, plan)?;
    if let TableGate::Is(gate) = gate
        && !list::is_same(&read(socket, &gate.chain_name())?, &gate.rules())
    {
        return Err(altered(&gate.chain_name()));
    }
    for fixed in &FIXED {
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
        if let Some(mark) = masquerading.mark() {
            let bit = mark.value().trailing_zeros();
            let wanted = u8::try_from(bit).map(masquerade).unwrap_or_default();
            if !read(socket, POSTROUTING)?.contains(&Some(wanted)) {
                return Err(altered(POSTROUTING));
            }
        }
    }
    for network in conditions {
        let Some(chain) = network.realm.chain() else { continue };
        if !list::is_same(&read(socket, &chain)?, &realm_rules(&network.realm)) {
            return Err(altered(&chain));
        }
        let found = read(socket, NETWORKS)?;
        let wanted = condition_rules(&network.realm, &network.alternatives);
        if !wanted.iter().all(|rule| found.contains(&Some(rule.clone()))) {
            return Err(altered(NETWORKS));
        }
    }
    Ok(())
}

fn check_entries(socket: &mut Socket, owner: &Attachment<'_>, plan: &Plan) -> Result<(), CniError> {
    let label = owner::label(owner);
    let keys: Vec<&Key> = plan.entries.iter().map(|entry| &entry.key).collect();
    for (wanted, found) in plan.entries.iter().zip(list::at(socket, &keys).context(|| STEP)?) {
        let key = &wanted.key;
        let Some(found) = found else {
            return Err(CniError::internal(format!("host port {key} leads nowhere")));
        };
        // By way of another interface it leads to the same container.
        if found.label != label && !owner::is_of(&found.label, owner.container_id) {
            let holder = owner::describe(&found.label);
            return Err(CniError::internal(format!("host port {key} is held by {holder}")));
        }
    }
    let own = match list::owner(socket, &label).context(|| STEP)? {
        Some(element) => list::entries_of(socket, &label, &element, &keys).context(|| STEP)?,
        None => {
            return Err(CniError::internal(format!("{} is not among the owners", owner::describe(&label))));
        }
    };
    let own = list::with_marks(socket, own).context(|| STEP)?;
    for found in &own {
        check_entry(found, plan)?;
    }
    Ok(())
}

fn check_entry(found: &Entry, plan: &Plan) -> Result<(), CniError> {
    let (key, target) = (&found.key, found.target);
    let Some(wanted) = plan.entries.iter().find(|wanted| wanted.key == *key) else {
        return Err(CniError::internal(format!(
            "host port {key} leads to {target}, and nobody asked for it"
        )));
    };
    if wanted.target != target {
        let wanted = wanted.target;
        return Err(CniError::internal(format!("host port {key} leads to {target} and not to {wanted}")));
    }
    if wanted.masquerade.chain_name() != found.masquerade.chain_name() {
        return Err(CniError::internal(format!("host port {key} is not masqueraded as it should be")));
    }
    Ok(())
}

fn read(socket: &mut Socket, chain: &str) -> Result<Vec<Option<Vec<Expr>>>, CniError> {
    list::rules_of(socket, chain).context(|| STEP)
}

fn altered(chain: &str) -> CniError {
    CniError::internal(format!("chain {chain:?} of table {TABLE} is not there or not as it should be"))
}

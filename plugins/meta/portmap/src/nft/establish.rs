//! Creates the table and what a network needs in it.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{
    self, Batch, DataType, Error, Expr, Rule, Table, Values, all_chains, change, rules,
};

use crate::mark::{Masquerade, bit_of};
use crate::plan::{MapSet, Plan, masquerades};

use super::gate::Gate;
use super::layout::{
    Chain, FOREIGN_MARKS, GUARD, OUTPUT, OWNERS, OWNERS_KEY, POSTROUTING, PREROUTING, TABLE, TABLE_COMMENT,
    chains, clear, jumps, masquerade,
};
use super::maps::Map;
use super::{list, pods};

/// Whether the table is ready for a batch that only adds, that is, the chains of every complete table have the expected number
/// of rules and references. Then returns the masquerading chains of the plan that are missing and that such a batch can create:
/// those of container subnets. Also returns whether any of the chains `others` exists. One round trip. Without this look, an ADD
/// to a table whose chains another program has flushed would succeed without effect, and a batch that the kernel must roll back
/// costs an RCU wait.
///
/// # Errors
/// Code 999 if the kernel refuses to read a chain.
pub fn look(
    socket: &mut Socket,
    plan: &Plan<'_>,
    gate: Gate,
    others: &[(Table<'_>, String)],
) -> Result<(Option<Vec<Masquerade>>, bool), CniError> {
    let fixed = chains(gate, &[], &[]);
    let masquerades = masquerades(&plan.host_ports);
    let targets: Vec<String> = masquerades.iter().map(Masquerade::chain_name).collect();
    let ours = fixed.iter().map(|chain| chain.name.as_str()).chain(targets.iter().map(String::as_str));
    let wanted: Vec<_> = ours
        .map(|name| (TABLE, name))
        .chain(others.iter().map(|(table, name)| (*table, name.as_str())))
        .collect();
    let mut found = nftables::chains(socket, &wanted).context(|| "find the chains of host ports")?;
    let has_others = found.split_off(fixed.len() + targets.len()).iter().any(Option::is_some);
    let targets = found.split_off(fixed.len());
    let are_right = fixed.iter().zip(&found).all(|(chain, found)| {
        let wanted = chain.rules.len() + jumps(&fixed, &chain.name);
        let uses = found.map_or(0, |found| found.uses as usize);
        found.is_some() && if chain.is_shared { uses >= wanted } else { uses == wanted }
    });
    let missing = masquerades.into_iter().zip(targets).filter(|(_, found)| found.is_none());
    let missing: Vec<Masquerade> = missing.map(|(masquerade, _)| masquerade).collect();
    let is_ready = are_right && missing.iter().all(|masquerade| masquerade.from.is_some());
    Ok((is_ready.then_some(missing), has_others))
}

/// Reads which gate the table has: `None` if nothing leads to one.
///
/// # Errors
/// Code 999 if the kernel refuses to list the rules.
pub fn gate(socket: &mut Socket) -> Result<Option<Gate>, CniError> {
    let rules = rules(socket, TABLE, PREROUTING).context(|| format!("read the gate of table {TABLE}"))?;
    Ok(gate_of(&rules))
}

/// The gate to which these rules of [`PREROUTING`] jump.
pub(super) fn gate_of(rules: &[Rule]) -> Option<Gate> {
    Gate::of_chain(&rules.first()?.jump_target()?)
}

/// Gives the table this gate. Does nothing if there is no table or the table has the gate already.
///
/// # Errors
/// Code 999 if the kernel refuses the batch.
pub fn switch(socket: &mut Socket, wanted: Gate) -> Result<(), CniError> {
    let name = wanted.chain_name();
    let changed = chains(wanted, &[], &[]);
    let is_changed =
        |chain: &&Chain| [&name, PREROUTING, OUTPUT, FOREIGN_MARKS].contains(&chain.name.as_str());
    let changed: Vec<&Chain> = changed.iter().filter(is_changed).collect();
    let outcome = change(socket, |socket, batch| {
        if gate_of(&rules(socket, TABLE, PREROUTING)?).is_none_or(|present| present == wanted) {
            return Ok(());
        }
        let present = names(socket)?;
        complete(socket, batch, &present, &changed)
    });
    outcome.context(|| format!("change the gate of table {TABLE}"))
}

fn names(socket: &mut Socket) -> Result<Vec<String>, Error> {
    Ok(all_chains(socket, TABLE)?.into_iter().map(|(name, _)| name).collect())
}

/// Adds all missing chains and maps to the batch: those of every table, those that the plan needs, and the chains
/// of these kinds of masquerading. The table has the maps and sets with the names `sets`. The caller must commit the batch at a
/// generation read before this call and these names.
pub(super) fn create_missing(
    socket: &mut Socket,
    batch: &mut Batch,
    sets: &[String],
    plan: &Plan<'_>,
    masquerades: &[Masquerade],
    gate: Gate,
) -> Result<(), Error> {
    let present = names(socket)?;
    batch.add_table(TABLE, Some(TABLE_COMMENT));
    add_sets(batch, sets, plan);
    let mut wanted = chains(gate, masquerades, &plan.conditions);
    // The rules for the mark bits of other attachments may be gone.
    let others: Vec<u8> = present.iter().filter_map(|name| bit_of(name)).collect();
    let of_bits = [(POSTROUTING, masquerade as fn(u8) -> Vec<Expr>), (FOREIGN_MARKS, clear)];
    for chain in &mut wanted {
        let rules = of_bits.iter().filter(|(name, _)| chain.name == *name);
        for rule in rules.flat_map(|(_, rule)| others.iter().copied().map(rule)) {
            if !chain.rules.contains(&rule) {
                chain.rules.push(rule);
            }
        }
    }
    complete(socket, batch, &present, &wanted.iter().collect::<Vec<_>>())
}

/// Creates the guard, which drops packets to 127.0.0.0/8 from outside, and the chain that clears this mark bit for the iptables backend,
/// which has no other objects in the table, and the table if necessary.
///
/// # Errors
/// Code 999 if the kernel refuses the batch.
pub fn create_guard(socket: &mut Socket, bit: u8) -> Result<(), CniError> {
    let fixed = chains(Gate::LOCAL, &[Masquerade { bit, from: None }], &[]);
    let is_wanted = |chain: &&Chain| [GUARD, FOREIGN_MARKS].contains(&chain.name.as_str());
    let wanted: Vec<&Chain> = fixed.iter().filter(is_wanted).collect();
    let outcome = change(socket, |socket, batch| {
        let keys: Vec<_> = wanted.iter().map(|chain| (TABLE, chain.name.as_str())).collect();
        let found = nftables::chains(socket, &keys)?.into_iter().zip(&wanted);
        let present = found.filter(|(found, _)| found.is_some()).map(|(_, chain)| chain.name.clone());
        batch.add_table(TABLE, Some(TABLE_COMMENT));
        let table = batch.len();
        complete(socket, batch, &present.collect::<Vec<_>>(), &wanted)?;
        if batch.len() == table {
            *batch = Batch::new();
        }
        Ok(())
    });
    outcome.context(|| format!("create chain {GUARD:?} of table {TABLE}"))
}

fn add_sets(batch: &mut Batch, present: &[String], plan: &Plan<'_>) {
    let map_sets = IpFamily::ALL.map(|family| MapSet { family, id: None }).into_iter();
    let map_sets = map_sets.chain(plan.conditions.iter().map(|conditions| conditions.map_set.clone()));
    let mut maps: Vec<Map> = map_sets.flat_map(|map_set| map_set.maps()).collect();
    maps.sort_by_key(Map::name);
    maps.dedup();
    if !present.iter().any(|set| set == OWNERS) {
        batch.add_set(TABLE, OWNERS, 0, &OWNERS_KEY, None);
    }
    let is_missing = |(_, (name, _)): &(u32, (&str, DataType))| !present.iter().any(|set| set == name);
    for (id, (name, key)) in (1..).zip(pods::MAPS).filter(is_missing) {
        batch.add_set(TABLE, name, id, &[key], Some(Values::Of(&[DataType::Mark])));
    }
    for (map, id) in maps.iter().zip(3..).filter(|(map, _)| !present.contains(&map.name())) {
        let data = [map.address(), DataType::Service];
        let values = if map.dnat { Values::Of(&data) } else { Values::Verdict };
        batch.add_set(TABLE, &map.name(), id, &map.key(), Some(values));
    }
}

/// Adds to the batch what completes these chains: creates missing ones, and refills those whose rules differ. Deletes other
/// gates among the chains with the names `present`.
fn complete(
    socket: &mut Socket,
    batch: &mut Batch,
    present: &[String],
    wanted: &[&Chain],
) -> Result<(), Error> {
    for chain in wanted {
        let name = &chain.name;
        let mut found = Vec::new();
        if present.contains(name) {
            found = list::rules_of(socket, name)?;
            if !chain.is_shared && !chain.is_right(&found) {
                batch.flush_chain(TABLE, name);
                found.clear();
            }
        } else {
            batch.add_chain(TABLE, name, chain.hook, chain.comment.as_deref());
        }
        for rule in chain.rules.iter().filter(|rule| !found.iter().flatten().any(|found| found == *rule)) {
            batch.add_rule(TABLE, name, rule, None);
        }
    }
    let is_other =
        |name: &&String| Gate::of_chain(name).is_some() && wanted.iter().all(|chain| chain.name != **name);
    for other in present.iter().filter(is_other) {
        batch.flush_chain(TABLE, other).delete_chain(TABLE, other);
    }
    Ok(())
}

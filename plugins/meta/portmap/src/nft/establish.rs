//! Creates the table and what a network needs in it.

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{
    Batch, DataType, Error, Expr, Hook, Rule, Table, Values, all_chains, chains, generation, rules, sets,
};

use ferrule_kernel::retry::retry;

use crate::mark::{Masquerade, bit_of};
use crate::plan::{MapSet, Plan};

use super::gate::{Gate, TableGate};
use super::layout::{
    FIXED_CHAINS, GUARD, NETWORKS, OUTPUT, OWNERS, OWNERS_KEY, POSTROUTING, PREROUTING, TABLE, TABLE_COMMENT,
    fixed_rules, masquerade_chains, references,
};
use super::maps::{Map, condition_rules, map_set_rules};
use super::{ATTEMPTS, list};

/// The conditions of one network in one family.
pub struct Conditions {
    /// The map set of the network.
    pub map_set: MapSet,
    /// Alternatives: a packet must match all expressions of at least one.
    pub alternatives: Vec<Vec<Expr>>,
    /// The network's name and the conditions as configured: the comment of the chain and the rules.
    pub text: String,
}

/// Whether the fixed chains and the gate have the expected number of rules and references, and the
/// masquerading chains of the plan exist; and whether any of the chains `others` exists. One round trip. Without
/// this check, an ADD to a table whose chains another program has flushed would succeed without effect, and a batch
/// that the kernel must roll back costs an RCU wait.
pub(super) fn look(
    socket: &mut Socket,
    plan: &Plan,
    gate: Gate,
    others: &[(Table<'_>, String)],
) -> Result<(bool, bool), Error> {
    let gate_chain = gate.chain_name();
    let targets: Vec<String> = plan.masquerades().iter().filter_map(Masquerade::chain_name).collect();
    let names = FIXED_CHAINS.iter().map(|fixed| fixed.name).chain([gate_chain.as_str()]);
    let mut wanted: Vec<_> =
        names.chain(targets.iter().map(String::as_str)).map(|name| (TABLE, name)).collect();
    let ours = wanted.len();
    wanted.extend(others.iter().map(|(table, name)| (*table, name.as_str())));
    let mut found = chains(socket, &wanted)?;
    let has_others = found.split_off(ours).iter().any(Option::is_some);
    let is_complete = found.iter().all(Option::is_some)
        && wanted.iter().zip(found).take(FIXED_CHAINS.len() + 1).all(|((_, name), chain)| {
            let wanted = if *name == gate_chain {
                count(&gate.rules()) + GATE_REFERENCES
            } else {
                count(&fixed_rules(name, gate, &[])) + references(name, gate)
            };
            chain.is_some_and(|chain| match *name {
                // Networks with conditions and other mark bits add rules.
                NETWORKS | POSTROUTING => chain.uses >= wanted,
                _ => chain.uses == wanted,
            })
        });
    Ok((is_complete, has_others))
}

/// Number of base chains that jump to the gate.
const GATE_REFERENCES: u32 = 2;

/// Reads which gate the table has.
pub(super) fn gate(socket: &mut Socket) -> Result<TableGate, Error> {
    Ok(gate_of(&rules(socket, TABLE, PREROUTING)?))
}

/// The gate to which these rules of [`PREROUTING`] jump.
pub(super) fn gate_of(rules: &[Rule]) -> TableGate {
    let Some(rule) = rules.first() else { return TableGate::NoTable };
    rule.jump_target().and_then(|chain| Gate::of_chain(&chain)).map_or(TableGate::NoGate, TableGate::Is)
}

/// Gives the table this gate. Does nothing if there is no table or the table has the gate already.
pub(super) fn switch(socket: &mut Socket, wanted: Gate) -> Result<(), Error> {
    retry(ATTEMPTS, Error::is_outdated, || {
        let generation = generation(socket)?;
        let present = gate(socket)?;
        if present == TableGate::NoTable || present == TableGate::Is(wanted) {
            return Ok(());
        }
        let chains = all_chains(socket, TABLE)?.into_iter().map(|(name, _)| name).collect();
        let mut batch = Batch::new();
        Builder { socket, batch: &mut batch, chains, gate: wanted }.gate()?;
        batch.commit_at(socket, generation)
    })
}

fn count<T>(rules: &[T]) -> u32 {
    u32::try_from(rules.len()).unwrap_or(u32::MAX)
}

/// Adds all missing chains and maps to the batch: those of every table, those that the plan needs, and the chains
/// of these kinds of masquerading. The caller must commit the batch at a generation read before this call.
pub(super) fn create_missing(
    socket: &mut Socket,
    batch: &mut Batch,
    plan: &Plan,
    masquerades: &[Masquerade],
    conditions: &[Conditions],
    gate: Gate,
) -> Result<(), Error> {
    let chains: Vec<String> = all_chains(socket, TABLE)?.into_iter().map(|(name, _)| name).collect();
    batch.add_table(TABLE, Some(TABLE_COMMENT));
    add_sets(socket, batch, plan)?;
    let mut builder = Builder { socket, batch, chains, gate };
    builder.marks(masquerades)?;
    builder.fixed()?;
    conditions.iter().try_for_each(|network| builder.network(network))
}

/// Creates the guard, and the table if necessary, without the other chains.
pub(super) fn create_guard(socket: &mut Socket) -> Result<(), Error> {
    for fixed in FIXED_CHAINS.iter().filter(|fixed| fixed.name == GUARD) {
        let rules = fixed_rules(GUARD, Gate::Local, &[]);
        let chain = chains(socket, &[(TABLE, GUARD)])?.pop().flatten();
        if chain.is_some_and(|chain| chain.uses == count(&rules)) {
            continue;
        }
        let mut batch = Batch::new();
        batch.add_table(TABLE, Some(TABLE_COMMENT)).add_chain(TABLE, GUARD, fixed.hook, None);
        batch.flush_chain(TABLE, GUARD);
        for rule in rules {
            batch.add_rule(TABLE, GUARD, &rule, None);
        }
        batch.commit(socket)?;
    }
    Ok(())
}

fn add_sets(socket: &mut Socket, batch: &mut Batch, plan: &Plan) -> Result<(), Error> {
    let present = sets(socket, TABLE)?;
    let map_sets = IpFamily::ALL.map(|family| MapSet { family, id: None }).into_iter().chain(plan.map_sets());
    let mut maps: Vec<Map> = map_sets.flat_map(|map_set| map_set.maps()).collect();
    maps.sort_by(|a, b| a.name.cmp(&b.name));
    maps.dedup();
    if !present.iter().any(|set| set == OWNERS) {
        batch.add_set(TABLE, OWNERS, 0, &OWNERS_KEY, None);
    }
    for (map, id) in maps.iter().zip(1..).filter(|(map, _)| !present.contains(&map.name)) {
        let data = [map.address(), DataType::Service];
        let values = if map.dnat { Values::Of(&data) } else { Values::Verdict };
        batch.add_set(TABLE, &map.name, id, &map.key(), Some(values));
    }
    Ok(())
}

/// Creates missing chains, and refills existing ones whose rules differ.
struct Builder<'a> {
    socket: &'a mut Socket,
    batch: &'a mut Batch,
    chains: Vec<String>,
    gate: Gate,
}

impl Builder<'_> {
    /// The mark chains, and the chains that jump to them.
    fn marks(&mut self, masquerades: &[Masquerade]) -> Result<(), Error> {
        let mut made: Vec<String> = Vec::new();
        for (name, rules) in masquerades.iter().flat_map(masquerade_chains) {
            // The chains of both families jump to the same mark chain.
            if !made.contains(&name) {
                self.chain(&name, None, &rules, None)?;
                made.push(name);
            }
        }
        self.chains.extend(made);
        Ok(())
    }

    /// The fixed chains, and the gate.
    fn fixed(&mut self) -> Result<(), Error> {
        let bits: Vec<u8> = self.chains.iter().filter_map(|name| bit_of(name)).collect();
        for fixed in &FIXED_CHAINS {
            let is_there = self.chains.iter().any(|name| name == fixed.name);
            match fixed.name {
                // Only networks add rules to it.
                NETWORKS if is_there => {}
                PREROUTING => self.gate()?,
                OUTPUT => {}
                name => self.chain(name, fixed.hook, &fixed_rules(name, self.gate, &bits), None)?,
            }
        }
        Ok(())
    }

    /// The gate and the base chains that jump to it. Deletes all other gates.
    fn gate(&mut self) -> Result<(), Error> {
        self.chain(&self.gate.chain_name(), None, &self.gate.rules(), None)?;
        for fixed in FIXED_CHAINS.iter().filter(|fixed| matches!(fixed.name, PREROUTING | OUTPUT)) {
            self.chain(fixed.name, fixed.hook, &fixed_rules(fixed.name, self.gate, &[]), None)?;
        }
        let is_other = |name: &&String| Gate::of_chain(name).is_some_and(|gate| gate != self.gate);
        for other in self.chains.iter().filter(is_other) {
            self.batch.flush_chain(TABLE, other).delete_chain(TABLE, other);
        }
        Ok(())
    }

    /// The chain of a network with conditions, and the rules that jump to it.
    fn network(&mut self, network: &Conditions) -> Result<(), Error> {
        let Some(name) = network.map_set.chain() else { return Ok(()) };
        self.chain(&name, None, &map_set_rules(&network.map_set), Some(&network.text))?;
        let present = list::rules_of(self.socket, NETWORKS)?;
        for rule in condition_rules(&network.map_set, &network.alternatives) {
            if !present.iter().any(|present| present.as_ref() == Some(&rule)) {
                self.batch.add_rule(TABLE, NETWORKS, &rule, Some(&network.text));
            }
        }
        Ok(())
    }

    fn chain(
        &mut self,
        name: &str,
        hook: Option<Hook>,
        rules: &[Vec<Expr>],
        comment: Option<&str>,
    ) -> Result<(), Error> {
        if !self.chains.iter().any(|chain| chain == name) {
            self.batch.add_chain(TABLE, name, hook, comment);
        } else if list::is_same(&list::rules_of(self.socket, name)?, rules) {
            return Ok(());
        } else {
            self.batch.flush_chain(TABLE, name);
        }
        for rule in rules {
            self.batch.add_rule(TABLE, name, rule, None);
        }
        Ok(())
    }
}

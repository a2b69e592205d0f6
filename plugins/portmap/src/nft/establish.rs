//! Making the table and what a network needs in it.

use cni_common::netlink::Socket;
use cni_common::nftables::{Batch, DataType, Error, Expr, Hook, Values, all_chains, chains, sets};

use crate::mark::{Masquerade, bit_of};
use crate::plan::{Plan, Realm};

use super::layout::{
    FIXED, GUARD, NETWORKS, OWNERS, OWNERS_KEY, POSTROUTING, TABLE, TABLE_COMMENT, fixed_rules,
    masquerade_chains,
};
use super::list;
use super::maps::{Map, condition_rules, realm_rules};

/// A network's conditions: what of them is compared, and how a person wrote them.
pub struct Conditions {
    /// Whose.
    pub realm: Realm,
    /// Alternatives of steps.
    pub alternatives: Vec<Vec<Expr>>,
    /// The words.
    pub text: String,
}

/// Whether the chains that are always there stand and have as many rules as they should, and those that the plan's entries
/// lead to are there: one round trip. Adding to a table that no packet reaches, because somebody flushed it, would go
/// unnoticed, and a batch that the kernel has to undo costs an RCU wait.
pub(super) fn stands(socket: &mut Socket, plan: &Plan) -> Result<bool, Error> {
    let leads_to: Vec<String> = plan.masquerades().iter().filter_map(Masquerade::chain_name).collect();
    let fixed = FIXED.iter().map(|fixed| (TABLE, fixed.name));
    let wanted: Vec<_> = fixed.chain(leads_to.iter().map(|name| (TABLE, name.as_str()))).collect();
    let found = chains(socket, &wanted)?;
    let are_all_there = found.iter().all(Option::is_some);
    Ok(are_all_there
        && FIXED.iter().zip(found).all(|(fixed, chain)| {
            let wanted = count(&fixed_rules(fixed.name, &[])) + fixed.references;
            chain.is_some_and(|chain| match fixed.name {
                // Networks and bits of their own add rules.
                NETWORKS | POSTROUTING => chain.uses >= wanted,
                _ => chain.uses == wanted,
            })
        }))
}

fn count<T>(rules: &[T]) -> u32 {
    u32::try_from(rules.len()).unwrap_or(u32::MAX)
}

/// Adds to the batch what is missing of the table and of what the plan needs. Right for a batch that is committed at the
/// generation from before this call.
pub(super) fn establish(
    socket: &mut Socket,
    batch: &mut Batch,
    plan: &Plan,
    conditions: &[Conditions],
) -> Result<(), Error> {
    let chains: Vec<String> = all_chains(socket, TABLE)?.into_iter().map(|(name, _)| name).collect();
    batch.add_table(TABLE, Some(TABLE_COMMENT));
    add_sets(socket, batch, plan)?;
    let mut builder = Builder { socket, batch, chains };
    builder.marks(plan)?;
    builder.fixed()?;
    conditions.iter().try_for_each(|network| builder.network(network))
}

/// Has the guard stand without the rest of the table.
///
/// # Errors
/// What the kernel refused.
pub(super) fn guard(socket: &mut Socket) -> Result<(), Error> {
    for fixed in FIXED.iter().filter(|fixed| fixed.name == GUARD) {
        let rules = fixed_rules(GUARD, &[]);
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
    let realms = [false, true].map(|v6| Realm { v6, id: None }).into_iter().chain(plan.realms());
    let mut maps: Vec<Map> = realms.flat_map(|realm| realm.maps()).collect();
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

/// Makes chains that are missing, and fills those anew that are not as they should be.
struct Builder<'a> {
    socket: &'a mut Socket,
    batch: &'a mut Batch,
    chains: Vec<String>,
}

impl Builder<'_> {
    /// The marks' chains, and those that lead to them.
    fn marks(&mut self, plan: &Plan) -> Result<(), Error> {
        let mut made: Vec<String> = Vec::new();
        for (name, rules) in plan.masquerades().iter().flat_map(masquerade_chains) {
            // Both families' networks lead to one mark.
            if !made.contains(&name) {
                self.chain(&name, None, &rules, None)?;
                made.push(name);
            }
        }
        self.chains.extend(made);
        Ok(())
    }

    /// The chains that are always there.
    fn fixed(&mut self) -> Result<(), Error> {
        let bits: Vec<u8> = self.chains.iter().filter_map(|name| bit_of(name)).collect();
        for fixed in &FIXED {
            let is_there = self.chains.iter().any(|name| name == fixed.name);
            // What is in it is the networks'.
            if fixed.name == NETWORKS && is_there {
                continue;
            }
            self.chain(fixed.name, fixed.hook, &fixed_rules(fixed.name, &bits), None)?;
        }
        Ok(())
    }

    /// The chain of a network with conditions, and what leads to it.
    fn network(&mut self, network: &Conditions) -> Result<(), Error> {
        let Some(name) = network.realm.chain() else { return Ok(()) };
        self.chain(&name, None, &realm_rules(&network.realm), Some(&network.text))?;
        let present = list::rules_of(self.socket, NETWORKS)?;
        for rule in condition_rules(&network.realm, &network.alternatives) {
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

//! What iptables-nft keeps in nf_tables, read and deleted without a process.
//!
//! Nothing is ever added to these tables: one rule that iptables-nft does not understand makes it refuse the table,
//! kube-proxy's rules included.

use cni_common::netlink::Socket;
use cni_common::nftables::{Batch, Error, Family, Rule, Table, chains, rules};
use cni_common::spec::ValidAttachment;

use super::rules::{DNAT, OLD_SNAT, Shared, chain_of, container_in, old_chain_of};
use crate::owner::Owner;

/// The nat table of a family.
pub const fn table(v6: bool) -> Table<'static> {
    Table::new(if v6 { Family::Ip6 } else { Family::Ip }, "nat")
}

/// How often rules are listed again because some were gone when they were to be deleted.
const TRIES: u32 = 20;

/// Which of the chains exist.
pub fn exist(socket: &mut Socket, v6: bool, names: &[&str]) -> Result<Vec<bool>, Error> {
    let wanted: Vec<_> = names.iter().map(|name| (table(v6), *name)).collect();
    Ok(chains(socket, &wanted)?.into_iter().map(|chain| chain.is_some()).collect())
}

/// Whether a shared rule is there. What a rule of ours does is told by where it stands and leads; the two that end in
/// something else than a jump are alone in their chains.
pub fn has(socket: &mut Socket, v6: bool, shared: &Shared) -> Result<bool, Error> {
    let target = shared.rule.argument("-j").unwrap_or_default();
    let found = rules(socket, table(v6), &shared.rule.chain)?;
    let is_jump = target.starts_with("CNI-");
    Ok(found.iter().any(|rule| !is_jump || rule.jump_target().is_some_and(|jump| jump == target)))
}

/// The families in which a container has a chain, of today's or of the old layout.
pub fn families_with(socket: &mut Socket, owner: &Owner<'_>) -> Result<Vec<bool>, Error> {
    let names =
        [chain_of(owner.network, owner.container_id), old_chain_of(owner.network, owner.container_id)];
    let wanted: Vec<_> = [false, true]
        .into_iter()
        .flat_map(|v6| names.iter().map(move |name| (table(v6), name.as_str())))
        .collect();
    let found = chains(socket, &wanted)?;
    let has = |v6: bool| found.iter().skip(usize::from(v6) * 2).take(2).any(Option::is_some);
    Ok([false, true].into_iter().filter(|v6| has(*v6)).collect())
}

/// Deletes a container's chains and what leads to them, from both families.
pub fn delete(socket: &mut Socket, owner: &Owner<'_>) -> Result<(), Error> {
    families_with(socket, owner)?.into_iter().try_for_each(|v6| delete_in(socket, v6, owner))
}

/// Deletes a container's chains of one family and what leads to them.
pub fn delete_in(socket: &mut Socket, v6: bool, owner: &Owner<'_>) -> Result<(), Error> {
    delete_chain(socket, v6, DNAT, &chain_of(owner.network, owner.container_id))?;
    delete_chain(socket, v6, OLD_SNAT, &old_chain_of(owner.network, owner.container_id))
}

/// Deletes the chains of the network's containers that have no valid attachment.
pub fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    for v6 in [false, true] {
        for parent in [DNAT, OLD_SNAT] {
            let mut dead: Vec<String> = rules(socket, table(v6), parent)?
                .iter()
                .filter_map(|rule| {
                    let comment = rule.compat_comment().or_else(|| rule.comment.clone())?;
                    dead_chain(&comment, &rule.jump_target()?, network, valid)
                })
                .collect();
            dead.sort_unstable();
            dead.dedup();
            for chain in dead {
                delete_chain(socket, v6, parent, &chain)?;
            }
        }
    }
    Ok(())
}

/// The chain that a rule with this comment leads to, if it is that of a container of the network which has no valid
/// attachment. Comment and target have to agree, so that no stranger's chain is taken.
pub fn dead_chain(comment: &str, target: &str, network: &str, valid: &[ValidAttachment]) -> Option<String> {
    // The old layout's comments began with another word.
    let comment = comment.strip_prefix("snat").map_or(comment.to_owned(), |rest| format!("dnat{rest}"));
    let container = container_in(&comment, network)?;
    let is_its = target == chain_of(network, container) || target == old_chain_of(network, container);
    let is_valid = valid.iter().any(|attachment| attachment.container_id == container);
    (is_its && !is_valid).then(|| target.to_owned())
}

fn delete_chain(socket: &mut Socket, v6: bool, parent: &str, chain: &str) -> Result<(), Error> {
    let table = table(v6);
    let mut tries = TRIES;
    loop {
        if chains(socket, &[(table, chain)])? == [None] {
            return Ok(());
        }
        let mut batch = Batch::new();
        let leads = |rule: &&Rule| rule.jump_target().is_some_and(|target| target == chain);
        for jump in rules(socket, table, parent)?.iter().filter(leads) {
            batch.delete_rule(table, parent, jump.handle);
        }
        batch.flush_chain(table, chain).delete_chain(table, chain);
        match batch.commit(socket) {
            // Somebody else deletes it too, or has just made something lead to it.
            Err(error) if tries > 0 && (error.is_not_found() || error.is_taken()) => tries -= 1,
            outcome => return outcome,
        }
    }
}

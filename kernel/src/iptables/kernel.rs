//! Reads and deletes the rules of iptables-nft in nf_tables, without starting a process.
//!
//! Only expressions of [`xt`](crate::nftables::xt) may be added to these tables: one rule that iptables-nft does not understand
//! makes it refuse the table, kube-proxy's rules included.

use crate::ip::IpFamily;
use crate::netlink::Socket;
use crate::nftables::{ATTEMPTS, Batch, Error, Family, Rule, Table, chains, rules};
use crate::retry::retry;
use crate::sorted;

/// The nat table of a family.
pub const fn table(family: IpFamily) -> Table<'static> {
    Table::new(Family::of(family), "nat")
}

/// Whether each of the chains exists in a family, in the order of `names`. One round trip.
pub fn exist(socket: &mut Socket, family: IpFamily, names: &[&str]) -> Result<Vec<bool>, Error> {
    let wanted: Vec<_> = names.iter().map(|name| (table(family), *name)).collect();
    Ok(chains(socket, &wanted)?.into_iter().map(|chain| chain.is_some()).collect())
}

/// The families that have at least one of the chains. One round trip. On a node that never
/// used the reference's iptables backend the result is empty, and no other request is necessary.
pub fn families_with(socket: &mut Socket, names: &[&str]) -> Result<Vec<IpFamily>, Error> {
    let families = IpFamily::ALL;
    let wanted: Vec<_> =
        families.iter().flat_map(|family| names.iter().map(|name| (table(*family), *name))).collect();
    let found = chains(socket, &wanted)?;
    let has = |index: usize| found.iter().skip(index * names.len()).take(names.len()).any(Option::is_some);
    Ok(families.into_iter().filter(|family| has(*family as usize)).collect())
}

/// The rules of `parent` that jump to `chain`.
pub fn jumps(socket: &mut Socket, family: IpFamily, parent: &str, chain: &str) -> Result<Vec<Rule>, Error> {
    let mut jumps = rules(socket, table(family), parent)?;
    jumps.retain(|rule| rule.jump_target().is_some_and(|target| target == chain));
    Ok(jumps)
}

/// Deletes a chain, and the rules of `parents` that jump to it. A missing chain is not an error.
pub fn delete_chain(
    socket: &mut Socket,
    family: IpFamily,
    parents: &[&str],
    chain: &str,
) -> Result<(), Error> {
    let table = table(family);
    // Another process may delete one of the rules or the chain, or add a jump to the chain.
    retry(ATTEMPTS, Error::is_conflict, || {
        if chains(socket, &[(table, chain)])? == [None] {
            return Ok(());
        }
        let mut batch = Batch::new();
        for parent in parents {
            for jump in jumps(socket, family, parent, chain)? {
                batch.delete_rule(table, parent, jump.handle);
            }
        }
        batch.flush_chain(table, chain).delete_chain(table, chain);
        batch.commit(socket)
    })
}

/// Deletes dead chains and the rules of `parent` that jump to them, in both families. `dead_chain` gets the
/// comment and the target of each rule of `parent` and returns the name of the dead chain, if any.
///
/// A chain without jumps to it stays until the DEL of its container: it has no effect, and its name does not
/// identify its owner.
pub fn delete_dead(
    socket: &mut Socket,
    parent: &str,
    dead_chain: impl Fn(&str, &str) -> Option<String>,
) -> Result<(), Error> {
    for family in IpFamily::ALL {
        let rules = rules(socket, table(family), parent)?;
        let dead = |rule: &Rule| {
            let comment = rule.compat_comment().or_else(|| rule.comment.clone())?;
            dead_chain(&comment, &rule.jump_target()?)
        };
        for chain in sorted(rules.iter().filter_map(dead)) {
            delete_chain(socket, family, &[parent], &chain)?;
        }
    }
    Ok(())
}

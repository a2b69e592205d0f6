//! What iptables-nft keeps in nf_tables, read and deleted without a process.
//!
//! Only steps of [`xt`](crate::nftables::xt) may be added to these tables: one rule that iptables-nft does not understand
//! makes it refuse the table, kube-proxy's rules included.

use crate::netlink::Socket;
use crate::nftables::{Batch, Error, Family, Rule, Table, chains, rules};

/// How often rules are listed again because some were gone when they were to be deleted.
const TRIES: u32 = 20;

/// The nat table of a family.
pub const fn table(v6: bool) -> Table<'static> {
    Table::new(if v6 { Family::Ip6 } else { Family::Ip }, "nat")
}

/// Which of the chains exist in a family, in one round trip.
///
/// # Errors
/// What the kernel said.
pub fn exist(socket: &mut Socket, v6: bool, names: &[&str]) -> Result<Vec<bool>, Error> {
    let wanted: Vec<_> = names.iter().map(|name| (table(v6), *name)).collect();
    Ok(chains(socket, &wanted)?.into_iter().map(|chain| chain.is_some()).collect())
}

/// The families, IPv6 or not, that have one of the chains, in one round trip: all there is to do on a node that never had
/// the reference's iptables backend.
///
/// # Errors
/// What the kernel said.
pub fn families_with(socket: &mut Socket, names: &[&str]) -> Result<Vec<bool>, Error> {
    let families = [false, true];
    let wanted: Vec<_> =
        families.iter().flat_map(|v6| names.iter().map(|name| (table(*v6), *name))).collect();
    let found = chains(socket, &wanted)?;
    let has =
        |v6: &bool| found.iter().zip(&wanted).any(|(chain, (of, _))| chain.is_some() && *of == table(*v6));
    Ok(families.into_iter().filter(has).collect())
}

/// The rules of `parent` that jump to `chain`.
///
/// # Errors
/// What the kernel said.
pub fn jumps(socket: &mut Socket, v6: bool, parent: &str, chain: &str) -> Result<Vec<Rule>, Error> {
    let mut jumps = rules(socket, table(v6), parent)?;
    jumps.retain(|rule| rule.jump_target().is_some_and(|target| target == chain));
    Ok(jumps)
}

/// Deletes a chain, and the rules of `parents` that jump to it. A missing chain is no error.
///
/// # Errors
/// What the kernel said.
pub fn delete_chain(socket: &mut Socket, v6: bool, parents: &[&str], chain: &str) -> Result<(), Error> {
    let table = table(v6);
    let mut tries = TRIES;
    loop {
        if chains(socket, &[(table, chain)])? == [None] {
            return Ok(());
        }
        let mut batch = Batch::new();
        for parent in parents {
            for jump in jumps(socket, v6, parent, chain)? {
                batch.delete_rule(table, parent, jump.handle);
            }
        }
        batch.flush_chain(table, chain).delete_chain(table, chain);
        match batch.commit(socket) {
            // Somebody else deletes it too, or has just made something lead to it.
            Err(error) if tries > 0 && (error.is_not_found() || error.is_taken()) => tries -= 1,
            outcome => return outcome,
        }
    }
}

/// Deletes the chains that rules of `parent` jump to and that are dead, with the jumps, from both families. `dead_chain`
/// says of a rule's comment and target which chain that is, if any. A chain that nothing leads to does nothing, and its
/// name alone does not say whose it is: it stays until its container's DEL.
///
/// # Errors
/// What the kernel said.
pub fn delete_dead(
    socket: &mut Socket,
    parent: &str,
    dead_chain: impl Fn(&str, &str) -> Option<String>,
) -> Result<(), Error> {
    for v6 in [false, true] {
        let mut dead: Vec<String> = rules(socket, table(v6), parent)?
            .iter()
            .filter_map(|rule| {
                let comment = rule.compat_comment().or_else(|| rule.comment.clone())?;
                dead_chain(&comment, &rule.jump_target()?)
            })
            .collect();
        dead.sort_unstable();
        dead.dedup();
        for chain in dead {
            delete_chain(socket, v6, &[parent], &chain)?;
        }
    }
    Ok(())
}

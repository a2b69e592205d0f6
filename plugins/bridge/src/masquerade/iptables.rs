//! What the reference's iptables backend made through iptables-nft: chains in the tables `ip nat` and `ip6 nat`.
//!
//! They are nf_tables chains, so they are read and deleted by netlink, without an `iptables` process. Nothing is ever
//! added to these tables: one rule that iptables-nft does not understand makes it refuse the table, kube-proxy's rules
//! included.

use std::net::IpAddr;

use cni_common::netlink::Socket;
use cni_common::nftables::{Batch, Error, Family, Rule, Table, chains, rules};
use cni_common::spec::ValidAttachment;

use super::plan;

const TABLES: [Table<'static>; 2] = [Table::new(Family::Ip, "nat"), Table::new(Family::Ip6, "nat")];
/// The base chain, from which a rule for each address jumps to the attachment's chain.
const POSTROUTING: &str = "POSTROUTING";
/// How often the rules are listed again because some were gone when they were to be deleted.
const TRIES: u32 = 10;

/// The addresses for which `POSTROUTING` jumps to the chain.
pub(super) fn sources(socket: &mut Socket, chain: &str) -> Result<Vec<IpAddr>, Error> {
    let mut sources = Vec::new();
    for table in with_chain(socket, chain)? {
        sources.extend(jumps(socket, table, chain)?.iter().filter_map(Rule::source));
    }
    Ok(sources)
}

/// Deletes the chain and what jumps to it.
pub(super) fn delete(socket: &mut Socket, chain: &str) -> Result<(), Error> {
    for table in with_chain(socket, chain)? {
        delete_chain(socket, table, chain)?;
    }
    Ok(())
}

/// Deletes the chains of the network's containers that have no valid attachment. A chain to which nothing jumps any more
/// does nothing, and its name alone does not say whose it is; DEL removes it.
pub(super) fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    for table in TABLES {
        let mut dead: Vec<String> = rules(socket, table, POSTROUTING)?
            .iter()
            .filter_map(|rule| dead_chain(rule, network, valid))
            .collect();
        dead.sort_unstable();
        dead.dedup();
        for chain in dead {
            delete_chain(socket, table, &chain)?;
        }
    }
    Ok(())
}

/// The chain to which the rule jumps for a container of the network that is not valid any more.
fn dead_chain(rule: &Rule, network: &str, valid: &[ValidAttachment]) -> Option<String> {
    let comment = rule.compat_comment().or_else(|| rule.comment.clone())?;
    plan::dead_chain(&comment, &rule.jump_target()?, network, valid)
}

/// The tables in which the chain exists: one round trip, and nothing more on a node that never had the reference's.
fn with_chain(socket: &mut Socket, chain: &str) -> Result<Vec<Table<'static>>, Error> {
    let found = chains(socket, &TABLES.map(|table| (table, chain)))?;
    Ok(TABLES.into_iter().zip(found).filter_map(|(table, found)| found.map(|_| table)).collect())
}

fn jumps(socket: &mut Socket, table: Table<'_>, chain: &str) -> Result<Vec<Rule>, Error> {
    let mut jumps = rules(socket, table, POSTROUTING)?;
    jumps.retain(|rule| rule.jump_target().is_some_and(|target| target == chain));
    Ok(jumps)
}

fn delete_chain(socket: &mut Socket, table: Table<'_>, chain: &str) -> Result<(), Error> {
    let mut tries = TRIES;
    loop {
        let mut batch = Batch::new();
        for jump in jumps(socket, table, chain)? {
            batch.delete_rule(table, POSTROUTING, jump.handle);
        }
        batch.flush_chain(table, chain).delete_chain(table, chain);
        match batch.commit(socket) {
            Err(error) if error.is_not_found() => {
                // Somebody else deletes it too.
                if chains(socket, &[(table, chain)])? == [None] {
                    return Ok(());
                }
                if tries == 0 {
                    return Err(error);
                }
                tries -= 1;
            }
            outcome => return outcome,
        }
    }
}

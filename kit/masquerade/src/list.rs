//! What the operator's tool reads of masquerading rules, and how it removes those of one owner.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{kernel, legacy};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::rules;
use ferrule_kit::{dead, lock};

use super::iptables::POSTROUTING;
use super::{iptables, nft};

/// A rule that masquerades one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masqueraded {
    /// The comment, which names the owner.
    pub comment: String,
    /// The source address.
    pub source: Option<IpAddr>,
    /// The chain of the iptables backend; `None` for the nftables backend.
    pub chain: Option<String>,
}

/// Lists the rules of both backends. Starts a process only for an iptables-legacy table.
///
/// # Errors
/// The kernel refuses to list a chain, or a program fails.
pub fn list(socket: &mut Socket) -> Result<Vec<Masqueraded>, CniError> {
    let step = || "list masquerade rules";
    let nftables = nft::list(socket).context(step)?.into_iter();
    let mut found: Vec<Masqueraded> =
        nftables.map(|(comment, source)| Masqueraded { comment, source, chain: None }).collect();
    for family in IpFamily::ALL {
        for rule in rules(socket, kernel::table(family), POSTROUTING).context(step)? {
            if let (Some(comment), chain @ Some(_)) =
                (rule.compat_comment().or_else(|| rule.comment.clone()), rule.jump_target())
            {
                found.push(Masqueraded { comment, source: rule.source(), chain });
            }
        }
    }
    for listing in legacy::listings().context(step)? {
        for rule in listing.rules_of(POSTROUTING) {
            if let (Some(comment), Some(chain)) = (rule.argument("--comment"), rule.argument("-j")) {
                let source = rule.argument("-s").and_then(|text| text.split('/').next()?.parse().ok());
                let (comment, chain) = (comment.to_owned(), Some(chain.to_owned()));
                found.push(Masqueraded { comment, source, chain });
            }
        }
    }
    Ok(found)
}

/// Removes the rules of the nftables backend with these comments whose owners are dead. `are_dead` is asked once rules are found, for
/// one answer for each comment. Returns for each whether there were rules that are removed.
///
/// # Errors
/// The kernel's error.
pub fn remove(
    socket: &mut Socket,
    comments: &[String],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let mut removed: BTreeSet<String> = BTreeSet::new();
    let mut of_dead = |found: &BTreeSet<String>| {
        let dead = dead::confirmed_names(comments, found, are_dead);
        removed.retain(|comment| !found.contains(comment));
        removed.extend(dead.iter().cloned());
        dead
    };
    nft::delete_if(socket, |one| comments.iter().any(|comment| comment == one), &mut of_dead)
        .context(|| "remove masquerade rules")?;
    Ok(comments.iter().map(|comment| removed.contains(comment)).collect())
}

/// As [`remove`], of chains of the iptables backend and the jumps to them under the lock for iptables.
///
/// # Errors
/// Code 11 if another process keeps the lock; the kernel's error, or that of the program.
pub fn remove_chains(
    socket: &mut Socket,
    chains: &[String],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let _lock = lock::iptables()?;
    let found: BTreeSet<String> = list(socket)?.into_iter().filter_map(|one| one.chain).collect();
    let removed = dead::confirmed(chains.iter().map(|chain| found.contains(chain)).collect(), are_dead);
    for (chain, _) in chains.iter().zip(&removed).filter(|(_, removed)| **removed) {
        iptables::delete(socket, chain)?;
    }
    Ok(removed)
}

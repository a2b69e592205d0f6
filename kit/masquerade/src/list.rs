//! What the operator's tool reads of masquerading rules, and how it removes those of one owner.

use std::net::IpAddr;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{kernel, legacy};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::rules;
use ferrule_kit::lock;

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

/// Removes the rules of the nftables backend with this comment, if `is_dead` says so. Returns whether there were any.
///
/// # Errors
/// The kernel's error.
pub fn remove(
    socket: &mut Socket,
    comment: &str,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    nft::delete_if(socket, |one| one == comment, is_dead).context(|| "remove masquerade rules")
}

/// Removes a chain of the iptables backend and the jumps to it under the lock for iptables, if `is_dead` says so.
///
/// # Errors
/// Code 11 if another process keeps the lock; the kernel's error, or that of the program.
pub fn remove_chain(
    socket: &mut Socket,
    chain: &str,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let _lock = lock::iptables()?;
    let is_there = list(socket)?.iter().any(|one| one.chain.as_deref() == Some(chain));
    if !is_there || !is_dead() {
        return Ok(false);
    }
    iptables::delete(socket, chain).map(|()| true)
}

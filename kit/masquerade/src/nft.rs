//! The nftables table of the reference's nftables backend, through netlink.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::spec::ValidAttachment;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{ATTEMPTS, Batch, Error, Expr, Rule, all_rules, chains, rules};
use ferrule_kernel::retry::retry;
use ipnetwork::IpNetwork;

use super::config::Masquerade;
use super::plan::{self, CHECKS, POSTROUTING, TABLE};

pub(super) fn add(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), Error> {
    if wanted.of(addresses).next().is_none() {
        return Ok(());
    }
    let comment = plan::comment(attachment);
    let commit = |socket: &mut Socket, mut batch: Batch| {
        for address in wanted.of(addresses) {
            batch.add_rule(TABLE, CHECKS, &plan::masquerade(*address, wanted), Some(&comment));
        }
        batch.commit(socket)
    };
    // The rule count shows cheaply whether the base chain is complete. Another program may have flushed it,
    // and rules added to a chain that no packet reaches would have no effect.
    let postrouting = chains(socket, &[(TABLE, POSTROUTING)])?.pop().flatten();
    if postrouting.is_some_and(|chain| chain.uses >= plan::POSTROUTING_RULES) {
        match commit(socket, Batch::new()) {
            Err(error) if error.is_not_found() => {}
            outcome => return outcome,
        }
    }
    commit(socket, establish())
}

/// Makes the table and its chains, and replaces the base chain's rules. Correct from any state: no table, a
/// complete one that another plugin made first, or a flushed one. Flushing in the same batch keeps two
/// concurrent first ADDs from adding the rules twice; the batch is atomic, so no packet sees the empty chain.
fn establish() -> Batch {
    let mut batch = Batch::new();
    batch
        .add_table(TABLE, Some(plan::TABLE_COMMENT))
        .add_chain(TABLE, CHECKS, None, Some(plan::CHECKS_COMMENT))
        .add_chain(TABLE, POSTROUTING, Some(plan::POSTROUTING_HOOK), None)
        .flush_chain(TABLE, POSTROUTING);
    for rule in plan::postrouting() {
        batch.add_rule(TABLE, POSTROUTING, &rule, None);
    }
    batch
}

/// The rules of an attachment.
pub(super) struct Own {
    /// Whether the base chain leads to them.
    is_reached: bool,
    /// Their expressions.
    rules: Vec<Vec<Expr>>,
}

impl Own {
    /// Whether the address is masqueraded as wanted.
    pub(super) fn masquerades(&self, address: IpNetwork, wanted: &Masquerade) -> bool {
        self.is_reached && self.has(address, wanted)
    }

    fn has(&self, address: IpNetwork, wanted: &Masquerade) -> bool {
        self.rules.iter().any(|rule| plan::masquerades(rule, address, wanted))
    }
}

/// Adds the rules that these addresses lack, and completes the base chain if it does not lead to them.
pub(super) fn repair(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    own: &Own,
    addresses: &[IpNetwork],
) -> Result<(), Error> {
    let mut batch = if own.is_reached { Batch::new() } else { establish() };
    for address in addresses.iter().filter(|address| !own.has(**address, wanted)) {
        batch.add_rule(TABLE, CHECKS, &plan::masquerade(*address, wanted), Some(&plan::comment(attachment)));
    }
    batch.commit(socket)
}

/// Reads the rules of the attachment.
pub(super) fn own(socket: &mut Socket, attachment: &Attachment<'_>) -> Result<Own, Error> {
    let rules = all_rules(socket, TABLE)?;
    let of = |chain: &'static str| rules.iter().filter(move |(name, _)| name == chain).map(|(_, rule)| rule);
    let is_reached = of(POSTROUTING).any(|rule| rule.jump_target().is_some_and(|target| target == CHECKS));
    let prefix = plan::prefix(attachment);
    let own =
        of(CHECKS).filter(|rule| rule.comment.as_ref().is_some_and(|comment| comment.starts_with(&prefix)));
    Ok(Own { is_reached, rules: own.filter_map(Rule::effect).collect() })
}

pub(super) fn delete(socket: &mut Socket, attachment: &Attachment<'_>) -> Result<(), Error> {
    let prefix = plan::prefix(attachment);
    delete_if(socket, |comment| comment.starts_with(&prefix), &mut BTreeSet::clone)
}

pub(super) fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    let network_prefix = plan::network_prefix(network);
    let valid = Attachment::keys(network, valid, plan::prefix);
    let is_lost = |comment: &str| {
        comment.starts_with(&network_prefix)
            && !comment.get(..plan::PREFIX_LENGTH).is_some_and(|prefix| valid.contains(prefix))
    };
    delete_if(socket, is_lost, &mut BTreeSet::clone)
}

/// The comments and source addresses of all rules.
pub(super) fn list(socket: &mut Socket) -> Result<Vec<(String, Option<IpAddr>)>, Error> {
    let commented = |rule: Rule| Some((rule.comment.clone()?, rule.source()));
    Ok(rules(socket, TABLE, CHECKS)?.into_iter().filter_map(commented).collect())
}

/// Deletes the rules whose comment satisfies `is_own`, that exist when `dead` is asked, and whose comment it returns of the found ones.
/// ADD makes new rules, so those of an ADD that comes in between stay.
pub(super) fn delete_if(
    socket: &mut Socket,
    is_own: impl Fn(&str) -> bool,
    dead: &mut dyn FnMut(&BTreeSet<String>) -> BTreeSet<String>,
) -> Result<(), Error> {
    // If another process deletes one of the rules first, the kernel rejects the whole batch.
    retry(ATTEMPTS, Error::is_conflict, || {
        let mut own = rules(socket, TABLE, CHECKS)?;
        own.retain(|rule| rule.comment.as_deref().is_some_and(&is_own));
        if own.is_empty() {
            return Ok(());
        }
        let dead = dead(&own.iter().filter_map(|rule| rule.comment.clone()).collect());
        own.retain(|rule| rule.comment.as_ref().is_some_and(|comment| dead.contains(comment)));
        for part in own.chunks(Batch::ROOM) {
            let mut batch = Batch::new();
            for rule in part {
                batch.delete_rule(TABLE, CHECKS, rule.handle);
            }
            batch.commit(socket)?;
        }
        Ok(())
    })
}

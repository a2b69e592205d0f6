//! `macspoofchk`: the bridge drops frames from the container whose source address is not the MAC address of
//! the container's interface.
//!
//! The tables, chains and comments equal those that the reference makes with the `nft` program, so either
//! plugin can continue the other's attachments; see [`plan`]. No program is started.

pub mod plan;

use std::collections::HashSet;
use std::slice;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Code, Context, ValidAttachment};
use ferrule_kernel::netlink::{LinkId, Mac, Socket, link};
use ferrule_kernel::nftables::matches::input_interface_of;
use ferrule_kernel::nftables::{ATTEMPTS, Batch, Error, Expr, Rule, chains, generation, probe, rules};
use ferrule_kernel::retry::retry;
use ferrule_kit::check::ensure;
use ferrule_kit::remedy;

use plan::{Chains, HOOK, PREROUTING, TABLE};

/// Adds the rules of the attachment in one batch, and replaces those that an earlier ADD has left.
pub fn add(socket: &mut Socket, attachment: &Attachment<'_>, port: &str, mac: Mac) -> Result<(), CniError> {
    let own = Chains::of(attachment);
    let comment = plan::comment(attachment);
    let added = retry(ATTEMPTS, Error::is_conflict, || {
        delete_chains(socket, &own)?;
        let mut batch = Batch::new();
        // Adding an existing chain would cost an RCU grace period.
        if chains(socket, &[(TABLE, PREROUTING)])? == [None] {
            batch.add_table(TABLE, None).add_chain(TABLE, PREROUTING, Some(HOOK), None);
        }
        batch.add_chain(TABLE, &own.interface, None, None).add_chain(TABLE, &own.mac, None, None);
        batch.add_rule(TABLE, PREROUTING, &own.jump(port), Some(&comment));
        batch.add_rule(TABLE, &own.interface, &own.interface_rule(), Some(&comment));
        for rule in plan::mac_rules(mac) {
            batch.add_rule(TABLE, &own.mac, &rule, Some(&comment));
        }
        batch.commit(socket)
    });
    added.context(|| "add rules against MAC spoofing")
}

/// Checks that the kernel supports nf_tables for bridges. Code 50 if it does not.
pub fn status() -> Result<(), CniError> {
    let probed = Socket::netfilter().and_then(|mut socket| probe(&mut socket, TABLE.family));
    probed.map_err(|error| {
        let msg = format!("macspoofchk needs nf_tables for bridges: {error}");
        CniError::new(Code::NotAvailable, msg).with_remedy(remedy::modules("nf_tables nft_meta_bridge"))
    })
}

/// Checks that frames of the port pass only with this source address.
///
/// # Errors
/// The first chain that lacks its rule.
pub fn check(socket: &mut Socket, attachment: &Attachment<'_>, port: &str, mac: Mac) -> Result<(), CniError> {
    let own = Chains::of(attachment);
    let mut read = |chain: &str| -> Result<Vec<Vec<Expr>>, CniError> {
        let rules = rules(socket, TABLE, chain).context(|| "list rules against MAC spoofing")?;
        Ok(rules.iter().map(|rule| rule.effect().unwrap_or_default()).collect())
    };
    ensure(read(PREROUTING)?.contains(&own.jump(port)), || {
        format!("macspoofchk: chain {TABLE} {PREROUTING} has no jump from {port:?} to {}", own.interface)
    })?;
    ensure(read(&own.interface)?.first() == Some(&own.interface_rule()), || {
        format!("macspoofchk: chain {TABLE} {} has no jump to {}", own.interface, own.mac)
    })?;
    ensure(read(&own.mac)? == plan::mac_rules(mac), || {
        format!("macspoofchk: chain {TABLE} {} does not drop all frames that are not from {mac}", own.mac)
    })
}

/// Removes the rules of the attachment. Missing rules are success.
pub fn delete(socket: &mut Socket, attachment: &Attachment<'_>) -> Result<(), CniError> {
    let own = Chains::of(attachment);
    let deleted = retry(ATTEMPTS, Error::is_conflict, || delete_chains(socket, &own));
    deleted.context(|| "remove rules against MAC spoofing")
}

/// Deletes two chains, and the rules that jump to the first one. One round trip if they do not exist.
fn delete_chains(socket: &mut Socket, own: &Chains) -> Result<(), Error> {
    let found = present(socket, slice::from_ref(own))?;
    if found.concat().is_empty() {
        return Ok(());
    }
    removal(socket, slice::from_ref(own), &found)?.commit(socket)
}

/// The names of those chains of each attachment that exist.
fn present<'c>(socket: &mut Socket, all: &'c [Chains]) -> Result<Vec<Vec<&'c str>>, Error> {
    let names: Vec<[&str; 2]> = all.iter().map(|own| [own.interface.as_str(), own.mac.as_str()]).collect();
    let wanted: Vec<_> = names.iter().flatten().map(|name| (TABLE, *name)).collect();
    let found = chains(socket, &wanted)?;
    let exists = |(name, chain): (&&'c str, &Option<_>)| chain.as_ref().map(|_| *name);
    let of = |(names, found): (&[&'c str; 2], &[_])| names.iter().zip(found).filter_map(exists).collect();
    Ok(names.iter().zip(found.chunks(2)).map(of).collect())
}

/// The batch that deletes these chains of the attachments, and the rules that jump to them.
fn removal(socket: &mut Socket, all: &[Chains], present: &[Vec<&str>]) -> Result<Batch, Error> {
    let mut batch = Batch::new();
    let wanted: HashSet<&str> = all
        .iter()
        .zip(present)
        .filter(|(_, names)| !names.is_empty())
        .map(|(own, _)| own.interface.as_str())
        .collect();
    for rule in rules(socket, TABLE, PREROUTING)? {
        if rule.jump_target().is_some_and(|target| wanted.contains(target.as_str())) {
            batch.delete_rule(TABLE, PREROUTING, rule.handle);
        }
    }
    for chain in present.iter().flatten() {
        batch.flush_chain(TABLE, chain);
    }
    for chain in present.iter().flatten() {
        batch.delete_chain(TABLE, chain);
    }
    Ok(batch)
}

/// Removes the rules of ports that no longer exist, except those of valid attachments. The rules do not name
/// their network, so this removes dead rules of all networks.
pub fn gc(
    netfilter: &mut Socket,
    host: &mut Socket,
    network: &str,
    valid: &[ValidAttachment],
) -> Result<(), CniError> {
    let step = || "remove dead rules against MAC spoofing";
    let valid = Attachment::keys(network, valid, |attachment| Chains::of(attachment).interface);
    let jumps = rules(netfilter, TABLE, PREROUTING).context(step)?;
    let candidates: Vec<(Chains, String)> =
        jumps.iter().filter_map(jump_of).filter(|(own, _)| !valid.contains(&own.interface)).collect();
    let lookups = candidates.iter().map(|(_, port)| link::get(LinkId::Name(port))).collect();
    for ((own, _), answer) in candidates.iter().zip(host.requests(lookups)) {
        if link::read(answer).context(step)?.is_none() {
            retry(ATTEMPTS, Error::is_conflict, || delete_chains(netfilter, own)).context(step)?;
        }
    }
    Ok(())
}

/// All attachments that have rules: their chains, the port, and the comment, which names container and interface.
///
/// # Errors
/// Code 999 if the kernel refuses to list the chain.
pub fn list(socket: &mut Socket) -> Result<Vec<(Chains, String, Option<String>)>, CniError> {
    let jumps = rules(socket, TABLE, PREROUTING).context(|| "list rules against MAC spoofing")?;
    let of = |rule: &Rule| jump_of(rule).map(|(chains, port)| (chains, port, rule.comment.clone()));
    Ok(jumps.iter().filter_map(of).collect())
}

/// How many attachments [`remove`] takes: each needs five requests.
pub const AT_ONCE: usize = Batch::ROOM / 5;

/// Removes the chains of at most [`AT_ONCE`] attachments, and the rules that jump to them. `are_dead` is asked once some are found, at a
/// generation of the ruleset, for one answer for each; the kernel refuses the batch after any change of it, such as an ADD. Returns for
/// each whether it had chains that are removed.
///
/// # Errors
/// Code 999 if the kernel refuses the batch.
pub fn remove(
    socket: &mut Socket,
    all: &[Chains],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    // At a generation, a chain that the kernel keeps has a rule of another program that leads to it.
    let is_concurrent = |error: &Error| error.is_outdated() || error.is_conflict() && !error.is_taken();
    let removed = retry(ATTEMPTS, is_concurrent, || {
        let generation = generation(socket)?;
        let mut found = present(socket, all)?;
        if !found.concat().is_empty() {
            let alive = found.iter_mut().zip(are_dead()).filter(|(_, is_dead)| !is_dead);
            alive.for_each(|(found, _)| found.clear());
            removal(socket, all, &found)?.commit_at(socket, generation)?;
        }
        Ok(found.iter().map(|found| !found.is_empty()).collect())
    });
    removed.context(|| "remove rules against MAC spoofing")
}

/// The chains to which a rule of the base chain jumps, and the port.
fn jump_of(rule: &Rule) -> Option<(Chains, String)> {
    Some((Chains::from_name(&rule.jump_target()?)?, input_interface_of(&rule.effect()?)?))
}

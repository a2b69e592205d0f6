//! `macspoofchk`: the bridge drops frames from the container whose source address is not the MAC address of
//! the container's interface.
//!
//! The tables, chains and comments equal those that the reference makes with the `nft` program, so either
//! plugin can continue the other's attachments; see [`plan`]. No program is started.

pub mod plan;

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
    removal(socket, own)?.map_or(Ok(()), |batch| batch.commit(socket))
}

/// The batch of [`delete_chains`]; `None` if the chains do not exist.
fn removal(socket: &mut Socket, own: &Chains) -> Result<Option<Batch>, Error> {
    let names = [own.interface.as_str(), own.mac.as_str()];
    let found = chains(socket, &names.map(|name| (TABLE, name)))?;
    let found: Vec<&str> =
        names.into_iter().zip(found).filter_map(|(name, chain)| chain.map(|_| name)).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let mut batch = Batch::new();
    for rule in rules(socket, TABLE, PREROUTING)? {
        if rule.jump_target().as_ref() == Some(&own.interface) {
            batch.delete_rule(TABLE, PREROUTING, rule.handle);
        }
    }
    for chain in &found {
        batch.flush_chain(TABLE, chain);
    }
    for chain in &found {
        batch.delete_chain(TABLE, chain);
    }
    Ok(Some(batch))
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

/// Removes chains and the rules that jump to them, if `is_dead` says so. `is_dead` is asked at a generation of the ruleset,
/// and the kernel refuses the batch after any change of it, such as an ADD.
///
/// # Errors
/// Code 999 if the kernel refuses the batch.
pub fn remove_if(
    socket: &mut Socket,
    own: &Chains,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let is_concurrent = |error: &Error| error.is_conflict() || error.is_outdated();
    let removed = retry(ATTEMPTS, is_concurrent, || {
        let generation = generation(socket)?;
        match removal(socket, own)? {
            Some(batch) if is_dead() => batch.commit_at(socket, generation).map(|()| true),
            _ => Ok(false),
        }
    });
    removed.context(|| "remove rules against MAC spoofing")
}

/// The chains to which a rule of the base chain jumps, and the port.
fn jump_of(rule: &Rule) -> Option<(Chains, String)> {
    Some((Chains::from_name(&rule.jump_target()?)?, input_interface_of(&rule.effect()?)?))
}

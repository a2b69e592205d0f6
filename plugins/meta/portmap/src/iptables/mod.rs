//! The iptables backend: to the byte the reference's rules, applied by one `iptables-restore` for each family.
//!
//! What iptables-nft keeps in nf_tables is read and deleted without a process. Legacy tables only the programs can read: an
//! ADD first assumes that all shared chains stand, and only if that is wrong has them listed.
//! Everything here also recognises and removes what the reference's own plugin made, whose state it is.

mod kernel;
mod legacy;
pub mod rules;

use std::io;
use std::path::Path;

use cni_common::spec::{CniError, Context, Failures, ValidAttachment};
use ferrule_kernel::iptables::kernel::exist;
use ferrule_kernel::iptables::{Listing, Programs, Variant};
use ferrule_kernel::lock::Lock;
use ferrule_kernel::netlink::Socket;
use ferrule_kit::lock;
use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::services;
use cni_common::plugin::Attachment;

use rules::{Rules, chain_of, is_in, meaning, rules};

const STEP: &str = "set up host ports by iptables";
const CHECK_STEP: &str = "check host ports by iptables";
/// The file whose lock they hold who make what containers share. Not the lock of `iptables`, which `iptables-legacy` takes
/// itself.
const LOCK: &str = "/run/ferrule-iptables.lock";
/// How often a change is tried again because somebody else changed the same meanwhile.
const TRIES: u32 = 10;

/// Makes the container's rules for these addresses.
///
/// # Errors
/// Code 999 with what a program said; code 11 if somebody keeps the lock on what containers share.
pub fn add(
    socket: &mut Socket,
    conf: &Conf,
    owner: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    for address in addresses {
        let programs = Programs::of_node(address.is_ipv6()).context(|| STEP)?;
        match programs.variant {
            Variant::Nft => add_nft(socket, &programs, conf, owner, *address)?,
            Variant::Legacy => legacy::add(&programs, conf, owner, *address)?,
        }
    }
    Ok(())
}

fn add_nft(
    socket: &mut Socket,
    programs: &Programs,
    conf: &Conf,
    owner: &Attachment<'_>,
    address: IpNetwork,
) -> Result<(), CniError> {
    let v6 = address.is_ipv6();
    let external = match conf.external_chain.as_deref() {
        Some(chain) if conf.snat => {
            let is_there = exist(socket, v6, &[chain]).context(|| STEP)? == [true];
            is_there.then_some(chain).or_else(|| absent(chain))
        }
        _ => None,
    };
    let rules = rules_here(conf, owner, address, external);
    // Of an earlier ADD, perhaps with another address: its rules would come first.
    kernel::delete_in(socket, v6, owner).context(|| STEP)?;
    let mut tries = TRIES;
    loop {
        let (mut lines, _lock) = missing(socket, &rules)?;
        lines.push(format!(":{} - [0:0]", rules.chain));
        lines.extend(own_lines(&rules));
        match programs.restore(&lines) {
            // Somebody else has made or removed a shared chain meanwhile.
            Err(_) if tries > 0 => tries -= 1,
            outcome => return outcome.context(|| STEP),
        }
    }
}

/// The rules for a node as it is: with kube-proxy in IPVS mode they leave NodePorts alone. A CHECK does not look for that, since
/// kube-proxy may have begun after the pod's ADD.
fn rules_here(conf: &Conf, owner: &Attachment<'_>, address: IpNetwork, external: Option<&str>) -> Rules {
    let rules = rules(conf, owner, address, external);
    if services::are_local() { rules.leave_node_ports() } else { rules }
}

/// The lines that make what containers share and the kernel lacks; if there are any, with the lock until they are carried out.
fn missing(socket: &mut Socket, rules: &Rules) -> Result<(Vec<String>, Option<Lock>), CniError> {
    let mut look = || kernel::missing(socket, rules).context(|| STEP);
    if look()?.is_empty() {
        return Ok((Vec::new(), None));
    }
    let lock = lock_shared()?;
    let lines = look()?;
    let lock = Some(lock).filter(|_| !lines.is_empty());
    Ok((lines, lock))
}

/// Taken by whoever has found missing what containers share, before it looks again. `iptables-nft` has no lock, and when the
/// ruleset has changed since its own look, it carries out what it was told all the same: it empties a chain that
/// it was told to make and that somebody else has made by then, and adds a second copy of each rule.
pub(crate) fn lock_shared() -> Result<Lock, CniError> {
    lock::take(Path::new(LOCK), 0o600)
}

/// The container's own rules.
fn own_lines(rules: &Rules) -> impl Iterator<Item = String> {
    rules.body.iter().chain(&rules.entries).map(|rule| rule.line("-A"))
}

/// Says that a chain of somebody else's is not there. The pod gets the marks that it would have without that key.
fn absent(chain: &str) -> Option<&'static str> {
    eprintln!(
        "externalSetMarkChain {chain:?} does not exist; host ports are masqueraded by a mark of our own"
    );
    None
}

/// Compares the rules that are with those that should be: the container's, those shared, and their order in its chain.
///
/// # Errors
/// Code 999 with the first difference.
pub fn check(conf: &Conf, owner: &Attachment<'_>, addresses: &[IpNetwork]) -> Result<(), CniError> {
    for address in addresses {
        let v6 = address.is_ipv6();
        let own = Programs::of_node(v6).context(|| CHECK_STEP)?;
        let mut listing = Listing::parse(&own.save().context(|| CHECK_STEP)?);
        // Where the node's own variant has nothing of the container's, the other one may.
        if !listing.has_chain(&chain_of(owner.network, owner.container_id))
            && own.variant != Variant::Legacy
            && let Some(legacy) = Programs::legacy(v6)
        {
            listing = Listing::parse(&legacy.save().context(|| CHECK_STEP)?);
        }
        compare(conf, owner, *address, &listing)?;
    }
    Ok(())
}

fn compare(
    conf: &Conf,
    owner: &Attachment<'_>,
    address: IpNetwork,
    listing: &Listing,
) -> Result<(), CniError> {
    let family = if address.is_ipv6() { "ipv6" } else { "ipv4" };
    let fault = |what: String| CniError::internal(format!("could not check {family} dnat: {what}"));
    let external = conf.external_chain.as_deref().filter(|chain| listing.has_chain(chain));
    let rules = rules(conf, owner, address, external);
    for chain in rules.shared_chains.iter().copied().chain([rules.chain.as_str()]) {
        if !listing.has_chain(chain) {
            return Err(fault(format!("chain {chain} not found in iptables table nat")));
        }
    }
    let shared = rules.shared.iter().map(|shared| &shared.rule);
    for rule in shared.chain(&rules.entries) {
        if !is_in(listing, rule) {
            return Err(fault(format!("rule {} not found in table nat", rule.line("-A"))));
        }
    }
    let mut found = listing.rules_of(&rules.chain);
    for rule in &rules.body {
        if found.next().map(meaning) != Some(meaning(rule)) {
            return Err(fault(format!("rule {} is not in its place in table nat", rule.line("-A"))));
        }
    }
    match found.next() {
        Some(rule) => Err(fault(format!("rule {} is one too many", rule.line("-A")))),
        None if listing.jumps_to(&rules.chain).count() != rules.entries.len() => {
            Err(fault(format!("more rules lead to chain {} than should", rules.chain)))
        }
        None => Ok(()),
    }
}

/// Removes a container's rules, from either variant. Legacy tables are looked at only if `processes` may be started.
///
/// # Errors
/// All steps are taken; code 999 with what failed.
pub fn delete(socket: &mut Socket, owner: &Attachment<'_>, processes: bool) -> Result<(), CniError> {
    let mut failures = Failures::default();
    failures.keep(kernel::delete(socket, owner).context(|| "remove host ports of iptables"));
    if processes {
        failures.keep(legacy::delete(owner).context(|| "remove host ports of iptables-legacy"));
    }
    failures.into_result()
}

/// Removes the rules of the network's containers that have no valid attachment, from both variants.
///
/// # Errors
/// As [`delete`].
pub fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let mut failures = Failures::default();
    failures.keep(kernel::gc(socket, network, valid).context(|| "collect host ports of iptables"));
    failures.keep(legacy::gc(network, valid).context(|| "collect host ports of iptables-legacy"));
    failures.into_result()
}

/// Whether `iptables` can be used for a family.
///
/// # Errors
/// Why not.
pub fn available(v6: bool) -> io::Result<()> {
    Programs::of_node(v6).map(drop)
}

/// Whether a container has rules in either variant. Where iptables-nft has none, it costs a process for each family that has one.
///
/// # Errors
/// Code 999 with what a program said.
pub fn has(socket: &mut Socket, owner: &Attachment<'_>) -> Result<bool, CniError> {
    let step = || "look for iptables chains";
    Ok(!kernel::families_of(socket, owner).context(step)?.is_empty() || legacy::has(owner).context(step)?)
}

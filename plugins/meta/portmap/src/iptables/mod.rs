//! The iptables backend: exactly the reference's rules, applied by one `iptables-restore` for each family.
//!
//! The rules of iptables-nft are read and deleted over netlink, without a process. Only the programs can read
//! legacy tables: an ADD first assumes that all shared chains exist, and lists the table only if that fails.
//! The reference's rules are the same, so CHECK, DEL and GC handle them too.

mod kernel;
mod legacy;
pub mod rules;

use std::io;

use cni_common::spec::{CniError, Context, Failures, ValidAttachment};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::kernel::exist;
use ferrule_kernel::iptables::{Listing, Programs, Variant, is_conflict};
use ferrule_kernel::lock::Lock;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Table;
use ferrule_kernel::retry::Limit;
use ferrule_kit::lock;
use ferrule_kit::retry::retry;
use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::services;
use cni_common::plugin::Attachment;

use rules::{Rules, SETMARK, chain_of, compared_options, is_in, rules};

const STEP: &str = "set up host ports with iptables";
const CHECK_STEP: &str = "check host ports with iptables";
/// The attempts to add a container's rules of one family.
const ATTEMPTS: Limit = Limit { attempts: 10, changes: "changes of the nat table" };

/// Adds the container's rules for these addresses.
///
/// # Errors
/// Code 999 with the output of the failed program; code 11 if another process keeps the lock for shared
/// chains.
pub fn add(
    socket: &mut Socket,
    conf: &Conf,
    owner: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    for address in addresses {
        let programs = Programs::of_node(IpFamily::of(address.ip())).context(|| STEP)?;
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
    let family = IpFamily::of(address.ip());
    let external = match conf.external_chain.as_deref() {
        Some(chain) if conf.snat => {
            let is_there = exist(socket, family, &[chain]).context(|| STEP)? == [true];
            is_there.then_some(chain).or_else(|| warn_missing_chain(chain))
        }
        _ => None,
    };
    let rules = rules_here(conf, owner, address, external);
    // An earlier ADD of this container may have had another address; its rules would come first.
    kernel::delete_in(socket, family, owner).context(|| STEP)?;
    // Another process may create or delete a shared chain.
    let outcome = retry(ATTEMPTS, is_conflict, || {
        let (mut lines, _lock) = missing(socket, &rules)?;
        lines.push(format!(":{} - [0:0]", rules.chain));
        lines.extend(own_lines(&rules));
        Ok(programs.restore(&lines))
    });
    outcome?.context(|| STEP)
}

/// The rules for this node: if kube-proxy runs in IPVS mode, they exempt NodePorts. CHECK does not expect
/// that rule, because kube-proxy may have started after the container's ADD.
fn rules_here(conf: &Conf, owner: &Attachment<'_>, address: IpNetwork, external: Option<&str>) -> Rules {
    let rules = rules(conf, owner, address, external);
    if services::are_local() { rules.leave_node_ports() } else { rules }
}

/// The lines that create missing shared chains and rules. If there are any, the lock is held and returned.
fn missing(socket: &mut Socket, rules: &Rules) -> Result<(Vec<String>, Option<Lock>), CniError> {
    let mut look = || kernel::missing(socket, rules).context(|| STEP);
    if look()?.is_empty() {
        return Ok((Vec::new(), None));
    }
    let lock = lock::iptables()?;
    let lines = look()?;
    let lock = Some(lock).filter(|_| !lines.is_empty());
    Ok((lines, lock))
}

/// The `-A` lines of the container's own rules.
fn own_lines(rules: &Rules) -> impl Iterator<Item = String> {
    rules.body.iter().chain(&rules.jumps).map(|rule| rule.line("-A"))
}

/// Warns that the chain of `externalSetMarkChain` is missing. The rules then use the reference's mark chain.
fn warn_missing_chain(chain: &str) -> Option<&'static str> {
    eprintln!("externalSetMarkChain {chain:?} does not exist: host ports use chain {SETMARK} instead");
    None
}

/// Compares the iptables rules with the expected ones: the shared rules, and the container's rules in their
/// order.
///
/// # Errors
/// Code 999 with the first difference.
pub fn check(conf: &Conf, owner: &Attachment<'_>, addresses: &[IpNetwork]) -> Result<(), CniError> {
    for address in addresses {
        let family = IpFamily::of(address.ip());
        let own = Programs::of_node(family).context(|| CHECK_STEP)?;
        let mut listing = Listing::parse(&own.save().context(|| CHECK_STEP)?);
        // The container's rules may be in the legacy tables even if the node uses iptables-nft.
        if !listing.has_chain(&chain_of(owner.network, owner.container_id))
            && own.variant != Variant::Legacy
            && let Some(legacy) = Programs::legacy(family)
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
    let error = |what: String| CniError::internal(format!("could not check {family} dnat: {what}"));
    let external = conf.external_chain.as_deref().filter(|chain| listing.has_chain(chain));
    let rules = rules(conf, owner, address, external);
    for chain in rules.shared_chains.iter().copied().chain([rules.chain.as_str()]) {
        if !listing.has_chain(chain) {
            return Err(error(format!("chain {chain} not found in iptables table nat")));
        }
    }
    let shared = rules.shared.iter().map(|shared| &shared.rule);
    for rule in shared.chain(&rules.jumps) {
        if !is_in(listing, rule) {
            return Err(error(format!("rule {} not found in table nat", rule.line("-A"))));
        }
    }
    let mut found = listing.rules_of(&rules.chain);
    for rule in &rules.body {
        if found.next().map(compared_options) != Some(compared_options(rule)) {
            return Err(error(format!("rule {} is at the wrong position in table nat", rule.line("-A"))));
        }
    }
    match found.next() {
        Some(rule) => Err(error(format!("unexpected rule {} in table nat", rule.line("-A")))),
        None if listing.jumps_to(&rules.chain).count() != rules.jumps.len() => {
            Err(error(format!("too many rules in table nat jump to chain {}", rules.chain)))
        }
        None => Ok(()),
    }
}

/// The possible chains of a container. With rules of iptables-nft it has at least one of them.
pub fn chains_of(owner: &Attachment<'_>) -> impl Iterator<Item = (Table<'static>, String)> + use<> {
    kernel::chains_of(owner)
}

/// Deletes a container's rules of both variants. Legacy tables are read only if `processes` is true.
///
/// # Errors
/// Code 999 with all failed steps; every step is tried.
pub fn delete(socket: &mut Socket, owner: &Attachment<'_>, processes: bool) -> Result<(), CniError> {
    let mut failures = Failures::default();
    failures.keep(kernel::delete(socket, owner).context(|| "remove host ports from iptables-nft"));
    if processes {
        failures.keep(legacy::delete(owner).context(|| "remove host ports from iptables-legacy"));
    }
    failures.into_result()
}

/// Deletes the rules of the network's containers without valid attachment, of both variants.
///
/// # Errors
/// As [`delete`].
pub fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let valid = Attachment::containers(valid);
    let nft = kernel::gc(socket, network, &valid);
    failures.keep(nft.context(|| "remove unused host ports from iptables-nft"));
    failures.keep(legacy::gc(network, &valid).context(|| "remove unused host ports from iptables-legacy"));
    failures.into_result()
}

/// Checks that `iptables` can be used for a family.
///
/// # Errors
/// The reason why it cannot.
pub fn available(family: IpFamily) -> io::Result<()> {
    Programs::of_node(family).map(drop)
}

/// Whether a container has rules of either variant. If iptables-nft has none, this starts one process for
/// each family with legacy tables.
///
/// # Errors
/// Code 999 with the output of the failed program.
pub fn has(socket: &mut Socket, owner: &Attachment<'_>) -> Result<bool, CniError> {
    let step = || "look up the container's iptables chains";
    Ok(!kernel::families_of(socket, owner).context(step)?.is_empty() || legacy::has(owner).context(step)?)
}

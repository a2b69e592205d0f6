//! ADD: adds a container's rules, with one process for each family in the usual case.

use cni_common::plugin::Attachment;
use cni_common::remark;
use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::kernel::{exist, table};
use ferrule_kernel::iptables::{Listing, Programs, Rule, Variant, is_conflict};
use ferrule_kernel::lock::Lock;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{self, Error};
use ferrule_kernel::retry::{Limit, retry_step};
use ferrule_kit::lock;
use ipnetwork::IpNetwork;

use super::rules::{Rules, SETMARK, is_in, rules};
use super::{compare, delete_in, listed};
use crate::config::Conf;
use crate::kube_proxy;

const STEP: &str = "set up host ports with iptables";
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
            Variant::Legacy => add_legacy(&programs, conf, owner, *address)?,
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
    delete_in(socket, family, owner).context(|| STEP)?;
    // Another process may create or delete a shared chain.
    let outcome: Result<_, CniError> = retry_step(ATTEMPTS, is_conflict, || {
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
    if kube_proxy::is_ipvs() { rules.leave_node_ports() } else { rules }
}

/// The lines that create missing shared chains and rules. If there are any, the lock is held and returned.
fn missing(socket: &mut Socket, rules: &Rules) -> Result<(Vec<String>, Option<Lock>), CniError> {
    if missing_lines(socket, rules).context(|| STEP)?.is_empty() {
        return Ok((Vec::new(), None));
    }
    let lock = lock::iptables()?;
    let lines = missing_lines(socket, rules).context(|| STEP)?;
    let lock = Some(lock).filter(|_| !lines.is_empty());
    Ok((lines, lock))
}

/// The `-A` lines of the container's own rules.
fn own_lines(rules: &Rules) -> impl Iterator<Item = String> {
    rules.body.iter().chain(&rules.jumps).map(|rule| rule.line("-A"))
}

/// Warns that the chain of `externalSetMarkChain` is missing. The rules then use the reference's mark chain.
fn warn_missing_chain(chain: &str) -> Option<&'static str> {
    remark!("externalSetMarkChain {chain:?} does not exist: host ports use chain {SETMARK} instead");
    None
}

/// The lines that create missing shared chains and rules. `-N` creates a chain and fails if it exists. A
/// declaration as in the output of `iptables-save` would flush a chain that another process has just created.
fn missing_lines(socket: &mut Socket, rules: &Rules) -> Result<Vec<String>, Error> {
    let present = exist(socket, rules.family, &rules.shared_chains)?;
    let missing = rules.shared_chains.iter().zip(present).filter(|(_, present)| !present);
    let mut lines: Vec<String> = missing.map(|(chain, _)| format!("-N {chain}")).collect();
    for (command, rule) in &rules.shared {
        if !has(socket, rules.family, rule)? {
            lines.push(rule.line(command));
        }
    }
    Ok(lines)
}

/// Whether a shared rule exists, judged by its chain and jump target. Each chain has at most one shared rule
/// that does not jump to one of our chains.
fn has(socket: &mut Socket, family: IpFamily, shared: &Rule) -> Result<bool, Error> {
    let target = shared.argument("-j").unwrap_or_default();
    let found = nftables::rules(socket, table(family), &shared.chain)?;
    Ok(found.iter().any(|rule| match rule.jump_target() {
        Some(jump) => jump == target,
        None => !target.starts_with("CNI-"),
    }))
}

/// Adds the container's rules. One process is enough if all shared chains and rules exist, as nearly always,
/// and the container has no rules yet.
fn add_legacy(
    programs: &Programs,
    conf: &Conf,
    owner: &Attachment<'_>,
    address: IpNetwork,
) -> Result<(), CniError> {
    let external = conf.external_chain.as_deref().filter(|_| conf.snat);
    if programs.restore(&lines_without_listing(&rules_here(conf, owner, address, external))).is_ok() {
        return Ok(());
    }
    let _lock = lock::iptables()?;
    replace(programs, conf, owner, address, false)
}

/// Makes the container's rules again in each family where CHECK refuses them, in one transaction. The other family stays.
/// `is_unfinished` adds a second jump to the container's chain, without effect on packets, which CHECK refuses until the next call.
///
/// # Errors
/// As [`add`].
pub fn repair(
    conf: &Conf,
    owner: &Attachment<'_>,
    addresses: &[IpNetwork],
    is_unfinished: bool,
) -> Result<(), CniError> {
    let _lock = lock::iptables()?;
    for address in addresses {
        let (programs, listing) = listed(owner, IpFamily::of(address.ip()))?;
        if compare(conf, owner, *address, &listing).is_err() {
            replace(&programs, conf, owner, *address, is_unfinished)?;
        }
    }
    Ok(())
}

/// Replaces the container's rules of one family, and creates the chains that they need. The caller holds the lock.
fn replace(
    programs: &Programs,
    conf: &Conf,
    owner: &Attachment<'_>,
    address: IpNetwork,
    is_unfinished: bool,
) -> Result<(), CniError> {
    let external = conf.external_chain.as_deref().filter(|_| conf.snat);
    let outcome = programs.change(ATTEMPTS, |listing| {
        let usable = external
            .and_then(|chain| if listing.has_chain(chain) { Some(chain) } else { warn_missing_chain(chain) });
        let rules = rules_here(conf, owner, address, usable);
        let mut lines = lines_for_listing(&rules, listing);
        lines.extend(rules.jumps.last().filter(|_| is_unfinished).map(|rule| rule.line("-A")));
        lines
    });
    outcome.context(|| STEP)
}

/// Lines that fail as a whole if a shared rule is missing or the container's chain exists.
fn lines_without_listing(rules: &Rules) -> Vec<String> {
    let mut lines = vec![format!("-N {}", rules.chain)];
    lines.extend(rules.shared.iter().map(|(_, rule)| rule.line("-C")));
    lines.extend(own_lines(rules));
    lines
}

/// Lines that replace the container's rules, and create shared chains and rules that the listing lacks.
fn lines_for_listing(rules: &Rules, listing: &Listing) -> Vec<String> {
    let missing = rules.shared_chains.iter().filter(|chain| !listing.has_chain(chain));
    let mut lines: Vec<String> = missing.map(|chain| format!("-N {chain}")).collect();
    // A declaration flushes an existing chain.
    lines.push(format!(":{} - [0:0]", rules.chain));
    lines.extend(listing.jumps_to(&rules.chain).map(|rule| rule.line("-D")));
    let missing = rules.shared.iter().filter(|(_, rule)| !is_in(listing, rule));
    lines.extend(missing.map(|(command, rule)| rule.line(command)));
    lines.extend(own_lines(rules));
    lines
}

//! The rules of a container in legacy tables, which only the iptables programs can read and change.

use std::collections::BTreeSet;
use std::io;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::iptables::legacy::{listings, remove, remove_dead};
use ferrule_kernel::iptables::{Listing, Programs, is_conflict};
use ferrule_kernel::retry::retry;
use ferrule_kit::lock;
use ipnetwork::IpNetwork;

use super::rules::{Rules, Shared, chain_of, dead_chain, is_in, old_chain_of};
use super::{ATTEMPTS, STEP, own_lines, rules_here, warn_missing_chain};
use crate::config::Conf;
use cni_common::plugin::Attachment;

/// Adds the container's rules. One process is enough if all shared chains and rules exist, as nearly always,
/// and the container has no rules yet.
pub(super) fn add(
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
    let outcome = retry(ATTEMPTS, is_conflict, || {
        let listing = Listing::parse(&programs.save()?);
        let usable = external
            .and_then(|chain| if listing.has_chain(chain) { Some(chain) } else { warn_missing_chain(chain) });
        let lines = lines_for_listing(&rules_here(conf, owner, address, usable), &listing);
        programs.restore(&lines)
    });
    outcome.context(|| STEP)
}

/// Lines that fail as a whole if a shared rule is missing or the container's chain exists.
fn lines_without_listing(rules: &Rules) -> Vec<String> {
    let mut lines = vec![format!("-N {}", rules.chain)];
    lines.extend(rules.shared.iter().map(|shared| shared.rule.line("-C")));
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
    let shared = rules.shared.iter().filter(|shared| !is_in(listing, &shared.rule));
    lines.extend(shared.map(Shared::line));
    lines.extend(own_lines(rules));
    lines
}

pub(super) fn has(owner: &Attachment<'_>) -> io::Result<bool> {
    let chain = chain_of(owner.network, owner.container_id);
    Ok(listings()?.iter().any(|listing| listing.has_chain(&chain)))
}

pub(super) fn delete(owner: &Attachment<'_>) -> io::Result<()> {
    let chains =
        [chain_of(owner.network, owner.container_id), old_chain_of(owner.network, owner.container_id)];
    remove(|_| chains.to_vec())
}

pub(super) fn gc(network: &str, valid: &BTreeSet<String>) -> io::Result<()> {
    remove_dead(|comment, target| dead_chain(comment, target, network, valid))
}

//! The iptables backend: exactly the reference's rules, applied by one `iptables-restore` for each family.
//!
//! The rules of iptables-nft are read and deleted over netlink, without a process. Only the programs can read
//! legacy tables: an ADD first assumes that all shared chains exist, and lists the table only if that fails.
//! The reference's rules are the same, so CHECK, DEL and GC handle them too.

mod add;
pub mod rules;

pub use add::{add, repair};
pub use rules::mark_bit;

use std::io;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Context, Failures, ValidAttachment};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::kernel::{delete_chain, delete_dead, families_with, table};
use ferrule_kernel::iptables::legacy::{listings, remove, remove_dead};
use ferrule_kernel::iptables::{Listing, NAT, Programs, Variant};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Error, Table};
use ipnetwork::IpNetwork;

use crate::config::Conf;
use rules::{DNAT, OLD_SNAT, chain_of, compared_options, dead_chain, is_in, rules};

const STEP: &str = "check host ports with iptables";

/// Compares the iptables rules with the expected ones: the shared rules, and the container's rules in their
/// order.
///
/// # Errors
/// Code 999 with the first difference.
pub fn check(conf: &Conf, owner: &Attachment<'_>, addresses: &[IpNetwork]) -> Result<(), CniError> {
    addresses.iter().try_for_each(|address| {
        let (_, listing) = listed(owner, IpFamily::of(address.ip()))?;
        compare(conf, owner, *address, &listing)
    })
}

/// The programs that have made the container's rules of a family, and their listing. The rules may be in the legacy tables
/// even if the node uses iptables-nft.
fn listed(owner: &Attachment<'_>, family: IpFamily) -> Result<(Programs, Listing), CniError> {
    let chain = chain_of(owner.network, owner.container_id);
    let own = Programs::of_node(family).context(|| STEP)?;
    let listing = own.list().context(|| STEP)?;
    if !listing.has_chain(&chain)
        && own.variant != Variant::Legacy
        && let Some(legacy) = Programs::legacy(family, NAT)
    {
        let other = legacy.list().context(|| STEP)?;
        if other.has_chain(&chain) {
            return Ok((legacy, other));
        }
    }
    Ok((own, listing))
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
    let shared = rules.shared.iter().map(|(_, rule)| rule);
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
    let chains = rules::chains_of(owner).map(|(_, chain)| chain);
    IpFamily::ALL.into_iter().flat_map(move |family| chains.clone().map(|chain| (table(family), chain)))
}

/// The families in which iptables-nft has a chain of the container, of the current or of the old layout.
fn families_of(socket: &mut Socket, owner: &Attachment<'_>) -> Result<Vec<IpFamily>, Error> {
    let [(_, chain), (_, old)] = rules::chains_of(owner);
    families_with(socket, &[&chain, &old])
}

/// Deletes a container's chains in iptables-nft, and the rules that jump to them, in one family.
fn delete_in(socket: &mut Socket, family: IpFamily, owner: &Attachment<'_>) -> Result<(), Error> {
    let mut chains = rules::chains_of(owner).into_iter();
    chains.try_for_each(|(parent, chain)| delete_chain(socket, family, &[parent], &chain))
}

/// Deletes a container's rules of both variants. Legacy tables are read only if `processes` is true.
///
/// # Errors
/// Code 999 with all failed steps; every step is tried.
pub fn delete(socket: &mut Socket, owner: &Attachment<'_>, processes: bool) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let families = families_of(socket, owner);
    let nft = families
        .and_then(|families| families.into_iter().try_for_each(|family| delete_in(socket, family, owner)));
    failures.keep(nft.context(|| "remove host ports from iptables-nft"));
    if processes {
        let chains = rules::chains_of(owner).map(|(_, chain)| chain);
        let legacy = remove(|_| chains.to_vec());
        failures.keep(legacy.context(|| "remove host ports from iptables-legacy"));
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
    let dead = |comment: &str, target: &str| dead_chain(comment, target, network, &valid);
    let nft = [DNAT, OLD_SNAT].into_iter().try_for_each(|parent| delete_dead(socket, parent, dead));
    failures.keep(nft.context(|| "remove unused host ports from iptables-nft"));
    failures.keep(remove_dead(dead).context(|| "remove unused host ports from iptables-legacy"));
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
    let step = || "find the container's iptables chains";
    if !families_of(socket, owner).context(step)?.is_empty() {
        return Ok(true);
    }
    let chain = chain_of(owner.network, owner.container_id);
    Ok(listings().context(step)?.iter().any(|listing| listing.has_chain(&chain)))
}

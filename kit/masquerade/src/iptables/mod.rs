//! The reference's iptables backend, in iptables-nft and iptables-legacy: one chain for each container, and for
//! each address a rule of `POSTROUTING` that jumps to it.
//!
//! ADD starts one `iptables-restore` for each address family. iptables-nft rules are read and deleted through
//! netlink. Legacy tables need the `iptables` program, which is started only if the network namespace has such
//! a table. The reference ran the program that it found on the runtime's `PATH`; if that `PATH` has no such
//! program, the reference cannot have made these chains. That is not an error for DEL: a node whose kube-proxy
//! image brings its own legacy `iptables` would otherwise fail every DEL.

mod rules;

use std::io;
use std::slice;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Context, Failures, ValidAttachment};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{Listing, Programs, is_conflict, kernel, legacy};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{self, Rule};
use ferrule_kernel::retry::{Limit, retry};
use ferrule_kit::lock;
use ferrule_kit::steps::report_undo;
use ipnetwork::IpNetwork;

use super::config::Masquerade;
use super::plan;
use rules::Rules;

/// The attempts to add to a chain that exists.
const ATTEMPTS: Limit = Limit { attempts: 10, changes: "changes of the nat table" };

pub(super) const POSTROUTING: &str = "POSTROUTING";

/// Adds the rules of the attachment. If that fails for one family, removes those of the other.
pub(super) fn add(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    let mut is_new = false;
    for family in IpFamily::ALL {
        let rules = rules::rules(wanted, attachment, family, addresses);
        match restore(&rules) {
            Ok(made) => is_new |= made,
            Err(error) => {
                if is_new {
                    report_undo(delete(socket, &rules.chain));
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Adds rules of one family, by one process unless the chain exists. Whether it has created the chain.
fn restore(rules: &Rules) -> Result<bool, CniError> {
    if rules.is_empty() {
        return Ok(false);
    }
    let step = || "add masquerade rules with iptables";
    let programs = Programs::of_node(rules.family).context(step)?;
    match programs.restore(&rules.lines()) {
        Err(error) if is_conflict(&error) => {}
        outcome => return outcome.map(|()| true).context(step),
    }
    // Another ADD of the container must not add the same rule between the look and the change.
    let _lock = lock::iptables()?;
    let outcome = retry(ATTEMPTS, is_conflict, || {
        let lines = rules.missing_lines(&Listing::parse(&programs.save()?));
        if lines.is_empty() { Ok(()) } else { programs.restore(&lines) }
    });
    outcome.map(|()| false).context(step)
}

/// Whether the node has the programs of at least one family.
///
/// # Errors
/// The reason why it does not.
pub(super) fn available() -> io::Result<()> {
    Programs::of_node(IpFamily::V4)
        .or_else(|error| Programs::of_node(IpFamily::V6).map_err(|_| error))
        .map(drop)
}

/// Whether the address is masqueraded as wanted by rules of iptables-nft.
pub(super) fn has(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    address: &IpNetwork,
) -> Result<bool, nftables::Error> {
    let family = IpFamily::of(address.ip());
    let chain = plan::chain_of(attachment.network, attachment.container_id);
    let jumps = kernel::jumps(socket, family, POSTROUTING, &chain)?;
    if !jumps.iter().filter_map(Rule::source).any(|source| source == address.ip()) {
        return Ok(false);
    }
    Ok(rules::masquerades(&nftables::rules(socket, kernel::table(family), &chain)?, wanted, address))
}

/// Those of the addresses that no rules of iptables-legacy masquerade. Starts one process for each family that
/// has a legacy nat table.
pub(super) fn missing_in_legacy(
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    addresses: Vec<IpNetwork>,
) -> io::Result<Vec<IpNetwork>> {
    let listings = legacy::listings()?;
    let is_missing = |address: &IpNetwork| {
        let family = IpFamily::of(address.ip());
        let rules = rules::rules(wanted, attachment, family, slice::from_ref(address));
        !listings.iter().any(|listing| rules.are_in(listing))
    };
    Ok(addresses.into_iter().filter(is_missing).collect())
}

/// Deletes the chain and the rules that jump to it.
pub(super) fn delete(socket: &mut Socket, chain: &str) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let kernel = kernel::families_with(socket, &[chain]).and_then(|families| {
        families
            .into_iter()
            .try_for_each(|family| kernel::delete_chain(socket, family, &[POSTROUTING], chain))
    });
    failures.keep(kernel.context(|| "remove masquerade rules of iptables-nft"));
    failures.keep(
        legacy::remove(|_| vec![chain.to_owned()]).context(|| "remove masquerade rules of iptables-legacy"),
    );
    failures.into_result()
}

/// Deletes the chains of those containers on the network that have no valid attachment.
pub(super) fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let valid = Attachment::containers(valid);
    let dead = |comment: &str, target: &str| plan::dead_chain(comment, target, network, &valid);
    failures.keep(
        kernel::delete_dead(socket, POSTROUTING, dead)
            .context(|| "remove dead masquerade rules of iptables-nft"),
    );
    failures.keep(legacy::remove_dead(dead).context(|| "remove dead masquerade rules of iptables-legacy"));
    failures.into_result()
}

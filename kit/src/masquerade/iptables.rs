//! The rules of the reference's iptables backend, in iptables-nft and iptables-legacy: one chain for each
//! container, and for each address a rule of `POSTROUTING` that jumps to it.
//!
//! iptables-nft rules are read and deleted through netlink. Legacy tables need the `iptables` program, which
//! is started only if the network namespace has such a table. The reference ran the program that it found on
//! the runtime's `PATH`; if that `PATH` has no such program, the reference cannot have made these chains.
//! That is not an error: a node whose kube-proxy image brings its own legacy `iptables` would otherwise fail
//! every DEL.

use std::io;
use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Context, Failures, ValidAttachment};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{Listing, Programs, Variant, is_conflict, kernel, legacy};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Rule;
use ferrule_kernel::retry::{Limit, retry};
use ipnetwork::IpNetwork;

use super::plan;

const POSTROUTING: &str = plan::POSTROUTING_OF_IPTABLES;

/// The attempts to add rules of one family.
const ATTEMPTS: Limit = Limit { attempts: 10, changes: "changes of the nat table" };

/// Adds the rules that are missing, with one `iptables-restore` for each family.
pub(super) fn add(
    socket: &mut Socket,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    let step = || "add masquerade rules with iptables";
    let chain = plan::chain_of(attachment.network, attachment.container_id);
    for family in IpFamily::ALL {
        let own = addresses.iter().copied().filter(|address| IpFamily::of(address.ip()) == family);
        let rules = plan::iptables_rules(attachment, &own.collect::<Vec<_>>());
        if rules.is_empty() {
            continue;
        }
        let programs = Programs::of_node(family).context(step)?;
        let added = retry(ATTEMPTS, is_conflict, || {
            let present = present(socket, &programs, family, &chain)?;
            let new_chain = (!present.has_chain(&chain)).then(|| format!(":{chain} - [0:0]"));
            let missing =
                rules.iter().filter(|rule| !present.rules.contains(rule)).map(|rule| rule.line("-A"));
            programs.restore(&new_chain.into_iter().chain(missing).collect::<Vec<_>>())
        });
        added.context(step)?;
    }
    Ok(())
}

/// The nat table, or an empty one if it cannot have the chain. Usually this starts no process: the container has no
/// other interface on the network.
fn present(socket: &mut Socket, programs: &Programs, family: IpFamily, chain: &str) -> io::Result<Listing> {
    let may_have_it = match programs.variant {
        Variant::Nft => kernel::exist(socket, family, &[chain]).map_err(io::Error::other)? == [true],
        Variant::Legacy => Programs::has_legacy_table(family),
    };
    if may_have_it { Ok(Listing::parse(&programs.save()?)) } else { Ok(Listing::default()) }
}

/// The source addresses whose traffic iptables-nft's `POSTROUTING` sends to the chain.
pub(super) fn sources(socket: &mut Socket, chain: &str) -> Result<Vec<IpAddr>, CniError> {
    let step = || "list masquerade rules of iptables-nft";
    let mut sources = Vec::new();
    for family in kernel::families_with(socket, &[chain]).context(step)? {
        let jumps = kernel::jumps(socket, family, POSTROUTING, chain).context(step)?;
        sources.extend(jumps.iter().filter_map(Rule::source));
    }
    Ok(sources)
}

/// The source addresses whose traffic iptables-legacy's `POSTROUTING` sends to the chain.
pub(super) fn legacy_sources(chain: &str) -> Result<Vec<IpAddr>, CniError> {
    let listings = legacy::listings().context(|| "list masquerade rules of iptables-legacy")?;
    let rules = listings.iter().flat_map(|listing| listing.jumps_to(chain));
    Ok(rules.filter(|rule| rule.chain == POSTROUTING).filter_map(source).collect())
}

/// The rule's source address, if `-s` is one address and is not negated.
fn source(rule: &ferrule_kernel::iptables::Rule) -> Option<IpAddr> {
    let negated = rule.args.windows(2).any(|pair| pair == ["!", "-s"]);
    let network: IpNetwork = rule.argument("-s").filter(|_| !negated)?.parse().ok()?;
    let full = if network.is_ipv6() { 128 } else { 32 };
    (network.prefix() == full).then(|| network.ip())
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
    let dead = |comment: &str, target: &str| plan::dead_chain(comment, target, network, valid);
    failures.keep(
        kernel::delete_dead(socket, POSTROUTING, dead)
            .context(|| "remove dead masquerade rules of iptables-nft"),
    );
    failures.keep(legacy::remove_dead(dead).context(|| "remove dead masquerade rules of iptables-legacy"));
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::iptables::Rule;

    use super::*;

    #[test]
    fn source_is_a_single_address() {
        let source_of = |args: &str| source(&Rule::new(POSTROUTING, args));
        assert_eq!(source_of("-s 10.0.0.2/32 -j CNI-x"), "10.0.0.2".parse().ok());
        assert_eq!(source_of("! -s 10.0.0.2/32 -j CNI-x"), None);
        assert_eq!(source_of("-s 10.0.0.0/24 -j CNI-x"), None);
        assert_eq!(source_of("-j CNI-x"), None);
    }
}

//! The rules of the reference's iptables backend, in iptables-nft and iptables-legacy: one chain for each
//! container, and for each address a rule of `POSTROUTING` that jumps to it.
//!
//! iptables-nft rules are read and deleted through netlink. Legacy tables need the `iptables` program, which
//! is started only if the network namespace has such a table. The reference ran the program that it found on
//! the runtime's `PATH`; if that `PATH` has no such program, the reference cannot have made these chains.
//! That is not an error: a node whose kube-proxy image brings its own legacy `iptables` would otherwise fail
//! every DEL.

use std::net::IpAddr;

use cni_common::spec::{CniError, Context, Failures, ValidAttachment};
use ferrule_kernel::iptables::{kernel, legacy};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Rule;
use ipnetwork::IpNetwork;

use super::plan;

const POSTROUTING: &str = "POSTROUTING";

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

//! What the reference's iptables backend made: a chain for each container, to which a rule of `POSTROUTING` jumps for each
//! address, through either variant of `iptables`.
//!
//! The variant in nf_tables is read and deleted by netlink. Legacy tables need a process, and it is started only where the
//! network namespace has such a table. The reference's plugin made its chains with the program that it found on the
//! runtime's `PATH`; if there is none on the same `PATH`, none of these chains can be there. That is no error: a node whose
//! kube-proxy brings a legacy `iptables` in its own image would otherwise fail every DEL.

use std::net::IpAddr;

use cni_common::iptables::{kernel, legacy};
use cni_common::netlink::Socket;
use cni_common::nftables::Rule;
use cni_common::spec::{CniError, Failures, Step, ValidAttachment};
use ipnetwork::IpNetwork;

use super::plan;

const POSTROUTING: &str = "POSTROUTING";

/// The addresses for which `POSTROUTING` of iptables-nft jumps to the chain.
pub(super) fn sources(socket: &mut Socket, chain: &str) -> Result<Vec<IpAddr>, CniError> {
    let step = || "masquerade";
    let mut sources = Vec::new();
    for v6 in kernel::families_with(socket, &[chain]).step(step)? {
        let jumps = kernel::jumps(socket, v6, POSTROUTING, chain).step(step)?;
        sources.extend(jumps.iter().filter_map(Rule::source));
    }
    Ok(sources)
}

/// The addresses for which `POSTROUTING` of iptables-legacy jumps to the chain.
pub(super) fn legacy_sources(chain: &str) -> Result<Vec<IpAddr>, CniError> {
    let listings = legacy::listings().step(|| "masquerade")?;
    let rules = listings.iter().flat_map(|listing| listing.jumps_to(chain));
    Ok(rules.filter(|rule| rule.chain == POSTROUTING).filter_map(source).collect())
}

/// The single source address of a rule.
fn source(rule: &cni_common::iptables::Rule) -> Option<IpAddr> {
    let negated = rule.args.windows(2).any(|pair| pair == ["!", "-s"]);
    let network: IpNetwork = rule.argument("-s").filter(|_| !negated)?.parse().ok()?;
    let full = if network.is_ipv6() { 128 } else { 32 };
    (network.prefix() == full).then(|| network.ip())
}

/// Deletes the chain and what jumps to it.
pub(super) fn delete(socket: &mut Socket, chain: &str) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let kernel = kernel::families_with(socket, &[chain]).and_then(|families| {
        families.into_iter().try_for_each(|v6| kernel::delete_chain(socket, v6, &[POSTROUTING], chain))
    });
    failures.keep(kernel.step(|| "remove masquerade"));
    failures.keep(legacy::remove(|_| vec![chain.to_owned()]).step(|| "remove masquerade"));
    failures.into_result()
}

/// Deletes the chains of the network's containers that have no valid attachment.
pub(super) fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let dead = |comment: &str, target: &str| plan::dead_chain(comment, target, network, valid);
    failures.keep(kernel::delete_dead(socket, POSTROUTING, dead).step(|| "collect masquerade"));
    failures.keep(legacy::remove_dead(dead).step(|| "collect masquerade"));
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use cni_common::iptables::Rule;

    use super::*;

    #[test]
    fn the_source_of_a_rule_is_one_address() {
        let of = |args: &str| source(&Rule::new(POSTROUTING, args));
        assert_eq!(of("-s 10.0.0.2/32 -j CNI-x"), "10.0.0.2".parse().ok());
        assert_eq!(of("! -s 10.0.0.2/32 -j CNI-x"), None);
        assert_eq!(of("-s 10.0.0.0/24 -j CNI-x"), None);
        assert_eq!(of("-j CNI-x"), None);
    }
}

//! What plugins may leave on a node.

use cni_lab::{Node, Snapshot, TIMEOUT, eventually};

/// Parts of snapshot lines about state of the whole network, which the Go plugins do not remove either:
/// forwarding, base chains and the rules that jump from them, portmap's empty maps, host-local's folders,
/// last address and lock, and the runtime's own folders.
const STAY: [&str; 30] = [
    "ip_forward",
    "ipv6/conf/all/forwarding",
    "nft table ",
    "nft chain ip POSTROUTING",
    "nft chain ip6 POSTROUTING",
    "nft chain inet masq_checks",
    "nft chain inet postrouting",
    "nft inet cni_plugins_masquerade postrouting:",
    "CNI-HOSTPORT-",
    "nft chain ip OUTPUT",
    "nft chain ip6 OUTPUT",
    "nft chain ip PREROUTING",
    "nft chain ip6 PREROUTING",
    "nft chain inet KUBE-MARK-MASQ:",
    "nft chain inet foreign-marks",
    "nft chain inet guard",
    "nft chain inet hostports",
    "nft chain inet local",
    "nft chain inet networks",
    "nft chain inet output",
    "nft chain inet prerouting",
    "nft inet cni_portmap ",
    // Maps with elements have other lines, which begin with the elements.
    "4: {\"family\":\"inet\",\"map\":",
    "6: {\"family\":\"inet\",\"map\":",
    "_ip: {\"family\":\"inet\",\"map\":",
    "nft set inet owners: {\"family\"",
    "/ 0755",
    "/ 0700",
    "last_reserved_ip.",
    "/lock 0",
];

/// Fails if the attachments to these bridges, all deleted by now, have left anything on the node. `known` are
/// parts of lines that a plugin is known to leave although it should not.
pub(crate) fn assert_nothing_left(
    node: &Node,
    before: &Snapshot,
    bridges: &[&str],
    known: &[&str],
) -> anyhow::Result<()> {
    let links = bridges.iter().flat_map(|bridge| {
        [format!("link: {bridge} "), format!("address: {bridge} "), format!("dev={bridge} ")]
    });
    let links: Vec<String> = links.collect();
    let mut ignored: Vec<&str> = links.iter().map(String::as_str).collect();
    ignored.extend(STAY.iter().chain(&Snapshot::NAT_BASE_CHAINS).chain(known));
    let before = before.clone().ignoring(&ignored);
    let look = || anyhow::Ok(before.diff(&Snapshot::take(node)?.ignoring(&ignored)));
    // The kernel removes a veth some time after the namespace of its other end.
    eventually(TIMEOUT, || look().is_ok_and(|left| left.is_empty()));
    assert_eq!(look()?, "");
    Ok(())
}

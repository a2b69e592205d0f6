//! `ferrule repair` of running pods of containerd and podman, after each damage of a table. The tests need root, `nft`, both
//! variants of `iptables`, `dbus-daemon`, `firewalld`, containerd and podman.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/leftovers.rs"]
mod leftovers;
mod runtime;
mod scene;
mod traffic;

use cni_lab::testing::Firewalld;
use cni_lab::{Node, Place as _};

use self::runtime::Runtime;
use self::scene::Loss::{Egress, Hairpin, HostPort, Ingress, Outbound, Unseen};
use self::scene::{Damage, Scene};

const LINKS: [Damage; 10] = [
    ("ip link set BRIDGE down", Outbound, "bridge"),
    ("ip address flush dev BRIDGE scope global", Outbound, "bridge"),
    ("ip link set VETH nomaster", HostPort, "bridge"),
    ("ip link del BRIDGE", Outbound, "bridge portmap"),
    ("bridge link set dev VETH hairpin off", Hairpin, "bridge"),
    ("tc qdisc del dev VETH root", Ingress, "bandwidth"),
    ("tc qdisc del dev VETH ingress", Egress, "bandwidth"),
    ("ip link del IFB", Outbound, "bandwidth"),
    ("pod:sysctl -qw net.core.somaxconn=5", Unseen, "tuning"),
    ("sysctl -qw net.ipv4.ip_forward=0", HostPort, "bridge"),
];

const RULESET: [Damage; 3] = [
    ("nft flush ruleset; CLOSED", HostPort, "bridge firewall portmap"),
    ("nft -f /run/nftables.conf; CLOSED", Outbound, "bridge firewall portmap"),
    (
        "ip link set BRIDGE down; ip link del IFB; tc qdisc del dev VETH root; nft -f /run/nftables.conf; CLOSED",
        Outbound,
        "bandwidth bridge firewall portmap",
    ),
];

const NFTABLES: [Damage; 4] = [
    ("iptables-nft -t nat -F; iptables-nft -F", Outbound, "firewall"),
    ("iptables-legacy -t nat -F; iptables-legacy -F", HostPort, "firewall"),
    ("nft delete table inet cni_plugins_masquerade", Outbound, "bridge"),
    ("nft delete table inet cni_portmap", HostPort, "portmap"),
];

const IPTABLES: [Damage; 3] = [
    ("iptables -t nat -F", HostPort, "bridge portmap"),
    ("iptables -F", Outbound, "firewall"),
    ("iptables -t nat -F; iptables -t nat -X; iptables -F; iptables -X", Outbound, "bridge firewall portmap"),
];

const FIREWALLD: [Damage; 3] = [
    ("firewall-cmd --reload", Outbound, "firewall"),
    // firewalld still knows the sources.
    ("nft -f /run/nftables.conf", Outbound, "bridge portmap"),
    ("restart firewalld", Outbound, "firewall"),
];

/// The rules of Debian's nftables.service.
const SERVICE: &str = "flush ruleset
table inet filter {
    chain input { type filter hook input priority filter; }
    chain forward { type filter hook forward priority filter; }
    chain output { type filter hook output priority filter; }
}";

fn node() -> Node {
    let node = Node::new().unwrap();
    // So that a host port of the pod itself needs hairpin mode.
    node.write_file("/proc/sys/net/bridge/bridge-nf-call-iptables", "1").unwrap();
    node.write_file("/run/nftables.conf", SERVICE).unwrap();
    node.tool("nft", &["-f", "/run/nftables.conf"]).unwrap();
    node
}

#[test]
fn containerd_with_nftables() {
    let node = node();
    let runtime = Runtime::containerd(&node, "nftables");
    let mut scene = Scene::new(&node, runtime, None, &["nft", "legacy"]);
    for damage in LINKS.into_iter().chain(RULESET).chain(NFTABLES) {
        scene.mends(damage);
    }
    scene.end();
}

#[test]
fn containerd_with_firewalld() {
    let node = node();
    let firewalld = Firewalld::start(&node);
    let mut scene = Scene::new(&node, Runtime::containerd(&node, ""), Some(firewalld), &[]);
    for damage in FIREWALLD {
        scene.mends(damage);
    }
    scene.end();
}

#[test]
fn podman_with_iptables_nft() {
    let node = node();
    let mut scene = Scene::new(&node, Runtime::podman(&node, "iptables"), None, &["nft"]);
    for damage in LINKS.into_iter().chain(RULESET).chain(IPTABLES) {
        scene.mends(damage);
    }
    scene.end();
}

#[test]
fn podman_with_iptables_legacy() {
    let node = node();
    let runtime = Runtime::podman(&node, "iptables");
    // In the node's own /etc.
    node.sh("set -e; [ \"$(stat -f -c %T /etc)\" = overlayfs ]
        for name in iptables ip6tables; do for suffix in '' -save -restore; do
            ln -sf /usr/sbin/$name-legacy$suffix /etc/alternatives/$name$suffix
        done; done")
        .unwrap();
    let mut scene = Scene::new(&node, runtime, None, &["legacy"]);
    for damage in IPTABLES {
        scene.mends(damage);
    }
    scene.end();
}

//! Tables of other firewalls: which of them drop what pods send.

use cni_lab::{Node, Place as _};
use ferrule_kernel::netlink::Socket;
use ferrule_node::firewalls::faults;

/// The families in which a chain with these rules is named.
fn named(node: &Node, policy: &str, rules: &str) -> Vec<&'static str> {
    let hook = format!("type filter hook forward priority 0; policy {policy};");
    let table = format!(
        "flush ruleset; table inet own {{ chain open {{ accept; }}; chain shut {{ drop; }}; chain pass {{ {hook} {rules} }}; }}"
    );
    node.sh(&format!("nft '{table}'")).unwrap();
    let pods = ["10.244.1.0/24", "fd00:244:1::/64"].map(|network| network.parse().unwrap());
    let read = || faults(&mut Socket::netfilter().unwrap(), &pods, &pods, &["ferrule0".to_owned()]);
    let (found, _) = node.run(read).unwrap().unwrap();
    let text = found.into_iter().map(|(_, text)| text).collect::<String>();
    [("ip", "10.244.1.0/24"), ("ip6", "fd00:244:1::/64")]
        .into_iter()
        .filter_map(|(family, network)| text.contains(network).then_some(family))
        .collect()
}

#[test]
fn a_chain_is_named_if_it_drops_all_pods() {
    let node = Node::new().unwrap();
    let (both, v4, v6, none) = (&["ip", "ip6"][..], &["ip"][..], &["ip6"][..], &[][..]);
    for (policy, rules, expected) in [
        ("accept", "", none),
        ("drop", "", both),
        ("accept", "ct state established accept; iifname lo accept; log prefix \"x\" drop;", both),
        ("accept", "ct state invalid drop; tcp dport 22 reject; iifname eth0 drop;", none),
        ("drop", "accept;", none),
        (
            "drop",
            "ct state established,related accept; ct status dnat accept; meta l4proto icmp accept;",
            both,
        ),
        ("drop", "ip saddr 10.244.0.0/16 accept;", v6),
        ("drop", "ip6 daddr fd00:244::/32 accept;", v4),
        ("drop", "ip saddr { 10.0.0.0/8, 192.168.0.0/16 } accept;", v6),
        ("drop", "ip saddr 10.244.1.7 accept;", v6),
        ("drop", "ip saddr 192.168.0.0/16 accept; ip saddr != 10.244.0.0/16 accept;", both),
        ("drop", "iifname veth* accept;", none),
        ("drop", "oifname ferrule0 accept;", none),
        ("drop", "iifname != eth0 accept;", none),
        ("drop", "iifname eth0 accept; iifname docker0 accept;", both),
        ("accept", "jump shut; ip saddr 10.244.0.0/16 accept;", both),
        ("accept", "ip saddr 10.244.0.0/16 goto open; ip6 saddr fd00:244:1::/64 jump open; goto shut;", none),
        ("drop", "ct state new jump open;", both),
    ] {
        assert_eq!(named(&node, policy, rules), expected, "policy {policy}; {rules}");
    }
}

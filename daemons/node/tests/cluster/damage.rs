//! The daemon restores at once what other programs delete or change.

use std::time::{Duration, Instant};

use crate::lab::{Cluster, wait};
use crate::member::Member;

/// Commands on node a.
const DAMAGES: [&str; 29] = [
    "ip route del 10.244.2.0/24",
    "ip -6 route del fd00:244:2::/64",
    "ip route flush proto 79; ip -6 route flush proto 79",
    "ip route replace 10.244.2.0/24 via 192.0.2.99 proto 79",
    "ip route replace 10.244.3.0/24 dev eth0 proto 79",
    "ip route add 10.244.55.0/24 via 192.0.2.2 proto 79",
    "ip route prepend 10.244.2.0/24 via 192.0.2.99",
    "ip route change 10.244.2.0/24 via 192.0.2.2 dev eth0 proto 79 mtu 1400",
    "ip -6 route change fd00:244:2::/64 via 2001:db8::2 dev eth0 proto 79 src 2001:db8::1",
    "ip link set ferrule.vxlan arp off",
    "ip link add other type bridge; ip link set ferrule.vxlan master other",
    "ip link del ferrule.vxlan",
    "ip link set ferrule.vxlan down",
    "ip link set ferrule.vxlan mtu 1300",
    "ip link set ferrule.vxlan address 02:00:00:00:00:01",
    "ip addr flush dev ferrule.vxlan scope global",
    "ip neigh flush dev ferrule.vxlan nud permanent",
    "bridge fdb show dev ferrule.vxlan | grep dst | while read mac rest; do bridge fdb del $mac dev ferrule.vxlan; done",
    "printf '%s\n' 'link del ferrule.vxlan' 'link add ferrule.vxlan type vxlan id 7 dstport 4789' | ip -force -batch - 2>/dev/null || true",
    "nft delete table inet ferrule_node",
    "nft add table inet ferrule_node '{ flags dormant; }'",
    "nft flush ruleset",
    "nft flush table inet ferrule_node",
    "nft add rule inet ferrule_node postrouting drop",
    "nft delete table inet ferrule_guard",
    "nft flush set inet ferrule_guard owned4",
    "rm /run/cni/net.d/10-ferrule.conflist",
    "mv /run/cni/net.d/10-ferrule.conflist /run/old",
    "sed 's/1450/1500/' /run/cni/net.d/10-ferrule.conflist >/run/new; cat /run/new >/run/cni/net.d/10-ferrule.conflist",
];

/// The daemon's objects in the kernel as text, without the link-local address, which the kernel adds later.
fn state(member: &Member) -> String {
    member.sh(
        "for family in -4 -6; do ip $family route show proto 79; ip $family route show table local dev ferrule.vxlan | grep -v fe80 || true; done
        ip -d -o link show ferrule.vxlan 2>&1 | sed 's/^[0-9]*: //' || true
        bridge fdb show dev ferrule.vxlan 2>&1 | sort || true
        for family in -4 -6; do ip $family neigh show dev ferrule.vxlan nud permanent 2>&1 | sort; done || true
        for table in node guard; do nft -s list table inet ferrule_$table 2>&1; done || true
        cat /run/cni/net.d/10-ferrule.conflist 2>&1 || true",
    )
}

/// The lines that only one of two states has.
fn difference(before: &str, after: &str) -> Vec<String> {
    let only = |sign: &str, one: &str, other: &str| -> Vec<String> {
        one.lines()
            .filter(|line| !other.lines().any(|found| found == *line))
            .map(|line| format!("{sign}{line}"))
            .collect()
    };
    [only("-", before, after), only("+", after, before)].concat()
}

#[test]
fn damage_is_repaired() {
    let cluster = Cluster::started("");
    let a = &cluster.a;
    let (one, two, three) = (a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three"));
    one.reaches(&three);
    // The kernel reports changes of the device some time after the routes are there.
    let mut sound = state(a);
    wait("a state that stays", || std::mem::replace(&mut sound, state(a)) == state(a), |same| *same);
    let sound = state(a);
    assert!(
        sound.contains("10.244.3.0") && sound.contains("vxlan id 7471") && sound.contains("masquerade"),
        "{sound}"
    );
    let mut times = Vec::new();
    for damage in DAMAGES {
        // One script does both steps: the daemon may be quicker than a second process.
        let damaged = a.sh(&format!("{damage}\necho"));
        assert_eq!(damaged.trim(), "", "{damage}");
        let began = Instant::now();
        wait(&format!("repaired after: {damage}"), || difference(&sound, &state(a)), Vec::is_empty);
        times.push((began.elapsed(), damage));
    }
    times.sort();
    println!("{times:#?}");
    let (median, _) = times[times.len() / 2];
    assert!(median < Duration::from_secs(10), "{times:#?}");
    one.reaches(&two);
    one.reaches(&three);
    // The daemon leaves foreign objects alone.
    a.sh("ip route add 172.31.0.0/16 via 192.0.2.254; nft add table inet other; ip route del 10.244.2.0/24");
    wait("repaired", || difference(&sound, &state(a)), Vec::is_empty);
    a.sh("ip route show 172.31.0.0/16 | grep -q 192.0.2.254; nft list table inet other");
}

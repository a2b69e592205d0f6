//! State of the node that belongs to others.

use std::fs;
use std::net::UdpSocket;

use serde_json::json;

use crate::call::Answer;
use crate::cases::tools::node_in_use;
use crate::kernel;
use crate::outcome::{Stop, TestResult, ensure, skip};
use crate::test_context::TestContext;
use cni_lab::Place as _;
use cni_runner::Version;

/// State of every kind that no plugin has made. Each line of a snapshot about it contains one of [`MARKS`].
const FOREIGN: &str = "set -e
    ip link add foreign0 type veth peer name foreign1
    ip addr add 203.0.113.1/24 dev foreign0
    ip link set foreign0 mtu 1400 up && ip link set foreign1 up
    ip route add 198.51.100.0/24 via 203.0.113.9
    ip route add 192.0.2.0/24 dev foreign0 table 77
    ip rule add from 203.0.113.7 table 77
    tc qdisc add dev foreign0 root pfifo limit 7
    echo 2 > /proc/sys/net/ipv4/conf/foreign0/rp_filter
    echo 1 > /proc/sys/net/ipv4/conf/foreign0/route_localnet
    nft 'table inet foreign { chain input { type filter hook input priority 5; tcp dport 9 drop; }; }'
    iptables-nft -t nat -A POSTROUTING -s 203.0.113.0/24 ! -d 203.0.113.0/24 -j MASQUERADE
    iptables-nft -t filter -A FORWARD -i foreign0 -j ACCEPT
    iptables-nft -t nat -N FOREIGN && iptables-nft -t nat -A PREROUTING -d 203.0.113.1 -j FOREIGN
    mkdir -p /var/lib/cni/networks/foreign /var/lib/cni/results /run/cni
    printf 'foreign\\r\\neth0' > /var/lib/cni/networks/foreign/10.77.0.9
    echo '{}' > /var/lib/cni/results/foreign-pod-eth0
    echo foreign > /run/cni/foreign";
/// Source and destination of a datagram whose flow the kernel tracks.
const FLOW: (&str, &str) = ("203.0.113.1:7001", "203.0.113.9:9");
const MARKS: [&str; 3] = ["foreign", "203.0.113.", "FOREIGN"];
/// Prints the settings of the node and of the foreign links.
const SETTINGS: &str = "cd /proc/sys/net
    for dir in ipv4 ipv4/conf/all ipv4/conf/default ipv4/conf/lo ipv4/conf/foreign0 ipv6 ipv6/conf/all \
        ipv6/conf/default ipv6/conf/foreign0 bridge; do grep -s . $dir/* 2>/dev/null; done; true";

pub(super) fn foreign(test: &TestContext<'_>) -> TestResult {
    if !kernel::works(
        "ip link add probe2 type veth peer name probe3 && tc qdisc add dev probe2 root pfifo limit 7",
    )? {
        return skip("this kernel has no link type veth or no queueing discipline pfifo");
    }
    kernel::tools(&["ip", "tc", "nft", "iptables-nft"])?;
    // This comes first, so that changes by the neighbours' calls are not part of the compared state.
    node_in_use(test)?;
    test.node()?.sh(FOREIGN)?;
    test.node()?.run(|| UdpSocket::bind(FLOW.0).and_then(|socket| socket.send_to(b"foreign", FLOW.1)))??;
    let flows = foreign_flows(test)?;
    let before = test.snapshot()?;
    let settings = test.node()?.sh(SETTINGS)?;
    let theirs: Vec<String> =
        before.lines().filter(|line| MARKS.iter().any(|mark| line.contains(mark))).collect();

    let target = test.target("pod1")?;
    let answer = test.add(&target).run()?;
    let result = answer.result()?;
    let now: Vec<String> = test.snapshot()?.lines().collect();
    let missing: Vec<&String> = theirs.iter().filter(|line| !now.contains(line)).collect();
    answer.ensure(missing.is_empty(), "the foreign state unchanged", format!("missing: {missing:#?}"))?;
    same_settings(test, &settings, "ADD")?;
    same_flows(test, flows, &answer)?;
    if test.version >= Version::V0_4_0 {
        test.check(&target, &result).run()?;
    }
    let answer = test.detached(&target, &result)?;
    target.pod.delete()?;
    test.unchanged_since(&before, &answer)?;
    if test.version >= Version::V1_1_0 {
        let valid = ["neighbour"].map(|id| json!({"containerID": id, "ifname": target.ifname}));
        let answer = test.call("GC").key("cni.dev/valid-attachments", json!(valid)).run()?;
        answer.ok()?;
        test.unchanged_since(&before, &answer)?;
    }
    same_flows(test, flows, &answer)?;
    same_settings(test, &settings, "DEL and GC")
}

fn same_flows(test: &TestContext<'_>, flows: usize, answer: &Answer) -> TestResult {
    let are_all = foreign_flows(test)? == flows;
    answer.ensure(are_all, "the foreign flow still tracked by the kernel", "it is gone")
}

/// How many foreign flows the kernel tracks; 0 if /proc/net/nf_conntrack does not exist.
fn foreign_flows(test: &TestContext<'_>) -> Result<usize, Stop> {
    let tracked = test.node()?.run(|| fs::read_to_string("/proc/thread-self/net/nf_conntrack"))?;
    Ok(tracked.unwrap_or_default().lines().filter(|flow| flow.contains("203.0.113.")).count())
}

fn same_settings(test: &TestContext<'_>, before: &str, after: &str) -> Result<(), Stop> {
    let now = test.node()?.sh(SETTINGS)?;
    let changed: Vec<&str> = now.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
    ensure(changed.is_empty(), format!("the node's settings unchanged after {after}"), changed.join("\n"))
}

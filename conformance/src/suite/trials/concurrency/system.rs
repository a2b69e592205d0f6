//! What belongs to others on a node.

use std::fs;
use std::net::UdpSocket;

use serde_json::json;

use crate::fixture::Place as _;
use crate::runner::Version;
use crate::suite::call::Answer;
use crate::suite::kernel;
use crate::suite::lab::Lab;
use crate::suite::outcome::{Stop, Trialled, ensure, skip};
use crate::suite::trials::tools::node_in_use;

/// Something of every kind, made by somebody else. All of it has one of [`MARKS`] on it.
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
/// From where to where a datagram is sent that the kernel goes on tracking.
const FLOW: (&str, &str) = ("203.0.113.1:7001", "203.0.113.9:9");
const MARKS: [&str; 3] = ["foreign", "203.0.113.", "FOREIGN"];
/// The settings of a node as a whole, and of the foreign links.
const SETTINGS: &str = "cd /proc/sys/net
    for dir in ipv4 ipv4/conf/all ipv4/conf/default ipv4/conf/lo ipv4/conf/foreign0 ipv6 ipv6/conf/all \
        ipv6/conf/default ipv6/conf/foreign0 bridge; do grep -s . $dir/* 2>/dev/null; done; true";

pub(super) fn foreign(lab: &Lab<'_>) -> Trialled {
    if !kernel::works(
        "ip link add probe2 type veth peer name probe3 && tc qdisc add dev probe2 root pfifo limit 7",
    )? {
        return skip("this kernel has no links of the kind veth, or no queueing discipline pfifo");
    }
    kernel::tools(&["ip", "tc", "nft", "iptables-nft"])?;
    // First, since what the neighbours' calls do to others must not be taken for what was there.
    node_in_use(lab)?;
    lab.node()?.sh(FOREIGN)?;
    lab.node()?.run(|| UdpSocket::bind(FLOW.0).and_then(|socket| socket.send_to(b"foreign", FLOW.1)))??;
    let flows = foreign_flows(lab)?;
    let before = lab.snapshot()?;
    let settings = lab.node()?.sh(SETTINGS)?;
    let theirs: Vec<String> =
        before.lines().filter(|line| MARKS.iter().any(|mark| line.contains(mark))).collect();

    let target = lab.target("pod1")?;
    let answer = lab.add(&target).run()?;
    let result = answer.result()?;
    let now: Vec<String> = lab.snapshot()?.lines().collect();
    let missing: Vec<&String> = theirs.iter().filter(|line| !now.contains(line)).collect();
    answer.ensure(missing.is_empty(), "all that is foreign as before", format!("missing: {missing:#?}"))?;
    same_settings(lab, &settings, "ADD")?;
    same_flows(lab, flows, &answer)?;
    if lab.version >= Version::V0_4_0 {
        lab.check(&target, &result).run()?;
    }
    let answer = lab.detached(&target, &result)?;
    target.pod.delete()?;
    lab.unchanged_since(&before, &answer)?;
    if lab.version >= Version::V1_1_0 {
        let valid = ["neighbour"].map(|id| json!({"containerID": id, "ifname": target.ifname}));
        let answer = lab.call("GC").key("cni.dev/valid-attachments", json!(valid)).run()?;
        answer.ok()?;
        lab.unchanged_since(&before, &answer)?;
    }
    same_flows(lab, flows, &answer)?;
    same_settings(lab, &settings, "DEL and GC")
}

fn same_flows(lab: &Lab<'_>, flows: usize, answer: &Answer) -> Trialled {
    let are_all = foreign_flows(lab)? == flows;
    answer.ensure(are_all, "the foreign flow still tracked", "the kernel has forgotten it")
}

/// How many foreign flows the kernel tracks; none where it does not say.
fn foreign_flows(lab: &Lab<'_>) -> Result<usize, Stop> {
    let tracked = lab.node()?.run(|| fs::read_to_string("/proc/thread-self/net/nf_conntrack"))?;
    Ok(tracked.unwrap_or_default().lines().filter(|flow| flow.contains("203.0.113.")).count())
}

fn same_settings(lab: &Lab<'_>, before: &str, after: &str) -> Result<(), Stop> {
    let now = lab.node()?.sh(SETTINGS)?;
    let changed: Vec<&str> = now.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
    ensure(changed.is_empty(), format!("the node's settings as before, after {after}"), changed.join("\n"))
}

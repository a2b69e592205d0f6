//! Sysctls that cannot be read, that the kernel rewrites, or that nobody may write.

use serde_json::{Value, json};

use super::Step::{Call, Network, Node, Pod, Refused};
use super::Verb::{Add, Check, Del};
use super::{Report, Step};

/// A bridge, and tuning with these sysctls.
fn tuned(sysctl: &Value) -> Step {
    Network(json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
        {"type": "tuning", "sysctl": sysctl}]}))
}

pub(crate) fn reports() -> Vec<Report> {
    let nested = Report {
        source: "nested nodes and rootless containers",
        sentence: "a read-only /proc/sys is no error if everything is as it must be",
        steps: vec![
            Network(json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
                {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipam": {"type": "host-local",
                    "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}}]})),
            Node(
                "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.disable_ipv6=0",
            ),
            Node("mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"),
            Call(Add, "c1"),
            Call(Check, "c1"),
            Pod("c1", "ping -q -c 1 -W 3 fd00:1::1"),
            Call(Del, "c1"),
        ],
    };
    vec![
        nested,
        Report {
            source: "criu#160, wicked#830",
            sentence: "a sysctl that answers EIO until its first write counts as not set before",
            steps: vec![
                tuned(
                    &json!({"net.ipv6.conf.IFNAME.stable_secret": "2001:0db8:0000:0000:0000:0000:0000:0001"}),
                ),
                Call(Add, "c1"),
                Call(Check, "c1"),
                Call(Del, "c1"),
            ],
        },
        Report {
            source: "wicked#830 and its neighbours",
            sentence: "CHECK accepts the form in which the kernel shows a sysctl that ADD has written",
            steps: vec![
                tuned(
                    &json!({"net.ipv4.ip_local_reserved_ports": "8082,8081", "net.core.somaxconn": "0x200",
                    "net.ipv4.conf.IFNAME.arp_ignore": "02"}),
                ),
                Call(Add, "c1"),
                Call(Check, "c1"),
                Pod("c1", "echo 3 >/proc/sys/net/ipv4/conf/eth0/arp_ignore"),
                Refused(Check, "c1", "is 02, current value is 3"),
                Call(Del, "c1"),
            ],
        },
    ]
}

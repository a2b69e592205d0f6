//! Sysctls that cannot be read, that the kernel rewrites, or that nobody may write.

use serde_json::json;

use super::Report;
use super::Step::{Call, Network, Pod, Refused};
use super::Verb::{Add, Check, Del};

pub(crate) fn reports() -> Vec<Report> {
    vec![
        Report {
            source: "criu#160, wicked#830",
            sentence: "a sysctl that answers EIO until its first write counts as not set before",
            steps: vec![
                Network(json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
                {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
                {"type": "tuning", "sysctl": {"net.ipv6.conf.IFNAME.stable_secret": "2001:0db8:0000:0000:0000:0000:0000:0001"}}]})),
                Call(Add, "c1"),
                Call(Check, "c1"),
                Call(Del, "c1"),
            ],
        },
        Report {
            source: "wicked#830 and its neighbours",
            sentence: "CHECK accepts the form in which the kernel shows a sysctl that ADD has written",
            steps: vec![
                Network(json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
                {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
                {"type": "tuning", "sysctl": {"net.ipv4.ip_local_reserved_ports": "8082,8081",
                    "net.core.somaxconn": "0x200", "net.ipv4.conf.IFNAME.arp_ignore": "02"}}]})),
                Call(Add, "c1"),
                Call(Check, "c1"),
                Pod("c1", "echo 3 >/proc/sys/net/ipv4/conf/eth0/arp_ignore"),
                Refused(Check, "c1", "is 02, current value is 3"),
                Call(Del, "c1"),
            ],
        },
    ]
}

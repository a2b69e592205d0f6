//! Links that a later plugin or the operator changes.

use serde_json::json;

use super::Report;
use super::Step::{Call, Network, Node, Pod};
use super::Verb::{Add, Check};

pub(crate) fn reports() -> Vec<Report> {
    vec![Report {
        source: "plugins#352, ocicni#74",
        sentence: "CHECK accepts what ADD made, also if a later plugin or the operator changes the MTU of the link",
        steps: vec![
            Network(json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
                {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
                {"type": "bandwidth", "ingressRate": 1_000_000, "ingressBurst": 4_294_967_295_u32,
                    "egressRate": 1_000_000, "egressBurst": 4_294_967_295_u32},
                {"type": "tuning", "mtu": 9000}]})),
            Call(Add, "c1"),
            Call(Check, "c1"),
            Node(
                "ip link set cni0 mtu 9000 && for veth in $(ls /sys/class/net/cni0/brif); do ip link set $veth mtu 9000; done",
            ),
            Call(Check, "c1"),
            Pod("c1", "ping -q -c 1 -W 2 -M do -s 8972 10.1.0.1"),
        ],
    }]
}

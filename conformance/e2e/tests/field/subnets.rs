//! Subnets of a node that change, and addresses that no network can have.

use serde_json::{Value, json};

use super::Report;
use super::Step::{Call, Gone, Network, Node, Ours, Pod, Reference, Refused};
use super::Verb::{Add, Check, Del};

const DIFFERENT: &str = "already has an IP address different from 10.244.8.1/24";

fn bridge(keys: &Value) -> Value {
    let mut plugin = json!({"type": "bridge", "bridge": "cni0", "isDefaultGateway": true});
    let keys = keys.as_object().cloned().unwrap_or_default();
    plugin.as_object_mut().unwrap().extend(keys);
    json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [plugin]})
}

fn subnet(subnet: &str, force: bool) -> super::Step {
    Network(bridge(&json!({"forceAddress": force, "ipam": {"type": "host-local", "subnet": subnet}})))
}

pub(crate) fn reports() -> Vec<Report> {
    let old = || subnet("10.244.7.0/24", false);
    let [refused, forced] = [false, true].map(|force| move || subnet("10.244.8.0/24", force));
    let assigned = |address: &str, gateway: &str, mtu: u32| {
        let ipam = json!({"type": "static", "addresses": [{"address": address, "gateway": gateway}]});
        Network(bridge(&json!({"mtu": mtu, "ipam": ipam})))
    };
    vec![
        Report {
            source: "kube-router#689, #496, cni#306, podman#12306",
            sentence: "the node's subnet has changed: its old gateway goes, but not before the last pod that needs it",
            steps: vec![
                old(),
                Call(Add, "c1"),
                refused(),
                Refused(Add, "c2", DIFFERENT),
                forced(),
                Call(Add, "c2"),
                Pod("c1", "ping -q -c 1 -W 2 10.244.7.1"),
                Pod("c2", "ping -q -c 1 -W 2 10.244.8.1"),
                Gone("c1"),
                // The kernel removes the pod's link some time later.
                Node(
                    "for n in $(seq 100); do [ $(ls /sys/class/net/cni0/brif | wc -l) = 1 ] && break; sleep 0.1; done",
                ),
                Call(Add, "c3"),
                Node("! ip address show dev cni0 | grep -F 10.244.7.1"),
                Call(Check, "c2"),
                Call(Del, "c2"),
            ],
        },
        Report {
            source: "kube-router#689 with the reference's plugins before and after",
            sentence: "both refuse the same subnets, and either works on the other's bridge",
            steps: vec![
                Reference,
                old(),
                Call(Add, "r1"),
                refused(),
                Refused(Add, "r2", DIFFERENT),
                Ours,
                Refused(Add, "o1", DIFFERENT),
                forced(),
                Call(Add, "o1"),
                Pod("r1", "ping -q -c 1 -W 2 10.244.7.1"),
                Reference,
                Call(Del, "r1"),
                Ours,
                Call(Add, "o2"),
                Node("! ip address show dev cni0 | grep -F 10.244.7.1"),
                Reference,
                Call(Add, "r3"),
                Pod("r3", "ping -q -c 1 -W 2 10.244.8.1"),
                Ours,
                Call(Check, "o1"),
                Call(Check, "r3"),
                Reference,
                Call(Del, "o1"),
                Call(Del, "r3"),
            ],
        },
        Report {
            source: "CHECK of a gateway 0.0.0.0",
            sentence: "ADD refuses a gateway that the bridge cannot have",
            steps: vec![
                assigned("10.1.0.2/24", "0.0.0.0", 1500),
                Refused(Add, "c1", "cannot have the gateway 0.0.0.0"),
                assigned("fd00:1::2/64", "::", 1500),
                Refused(Add, "c2", "cannot have the gateway ::"),
            ],
        },
        Report {
            source: "an MTU of a tunnel in a tunnel",
            sentence: "an MTU that IPv6 does not permit is named as the reason",
            steps: vec![
                assigned("fd00:1::2/64", "fd00:1::1", 1000),
                Refused(Add, "c1", "has MTU 1000, and IPv6 needs at least 1280"),
                assigned("10.1.0.2/24", "10.1.0.1", 1000),
                Call(Add, "c2"),
            ],
        },
    ]
}

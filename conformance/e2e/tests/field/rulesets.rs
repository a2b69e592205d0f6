//! Rulesets that other software saves, restores, flushes or edits.

use serde_json::{Value, json};

use super::Step::{Call, Capability, Gone, Network, Node, Ours, Reference, Refused, Says};
use super::Verb::{Add, Check, Del};
use super::{Report, Step};

/// A network with host ports.
fn pods() -> Value {
    json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge", "bridge": "cni0", "ipMasq": true, "isGateway": true,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
        {"type": "portmap", "capabilities": {"portMappings": true}}]})
}

fn port(port: u16) -> Value {
    json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}])
}

/// A restore of the text that `nft list ruleset` has written to `/run/saved`.
const RESTORE: &str = "nft flush ruleset; nft -f /run/saved";
const REBOOT: &str =
    "cat /proc/sys/kernel/random/uuid >/run/boot; mount --bind /run/boot /proc/sys/kernel/random/boot_id";

/// A container with the host port 8080 runs, and the ruleset is saved as text. Then these steps follow.
fn saved<const N: usize>(steps: [Step; N]) -> Vec<Step> {
    let before = [
        Network(pods()),
        Capability("portMappings", port(8080)),
        Call(Add, "c1"),
        Node("nft list ruleset >/run/saved"),
    ];
    before.into_iter().chain(steps).collect()
}

pub(crate) fn reports() -> Vec<Report> {
    vec![
        Report {
            source: "nomad#6385, nomad#18842",
            sentence: "a ruleset that comes back at boot keeps no host port from the next container",
            steps: saved([
                Gone("c1"),
                Node(REBOOT),
                Node(RESTORE),
                Call(Add, "c2"),
                Call(Check, "c2"),
                Call(Del, "c1"),
                Call(Check, "c2"),
            ]),
        },
        Report {
            source: "nomad#18842",
            sentence: "a pod without host ports does not inherit one with the address of a dead pod",
            steps: saved([
                Gone("c1"),
                Node(REBOOT),
                Node(RESTORE),
                Node("rm -r /var/lib/cni/networks/pods"),
                Capability("portMappings", json!([])),
                Call(Add, "c2"),
                Says("nft list map inet cni_portmap dnat4 | grep -c 8080", "0"),
            ]),
        },
        Report {
            source: "a neighbour of nomad#6385",
            sentence: "a ruleset that is restored without a reboot takes no host port from a running container",
            steps: saved([
                Node(RESTORE),
                Call(Check, "c1"),
                Refused(Add, "c2", "held by container c1"),
                Call(Del, "c2"),
                Call(Del, "c1"),
                Call(Add, "c2"),
            ]),
        },
        Report {
            source: "microk8s#3092, rke#3440",
            sentence: "host ports of dead containers do not move to the reference's rules at a rollback",
            steps: vec![
                Network(pods()),
                Capability("portMappings", port(8080)),
                Call(Add, "c1"),
                Gone("c1"),
                Says(
                    "portmap export --to iptables",
                    "container c1 (interface eth0 on network pods): 1 host ports are dropped",
                ),
                Says("iptables-save | grep -c 8080", "0"),
                Reference,
                Network(json!({"name": "next", "cniVersion": "1.0.0", "plugins": [
                    {"type": "bridge", "bridge": "cni1", "isGateway": true,
                        "ipam": {"type": "host-local", "subnet": "10.2.0.0/24"}},
                    {"type": "portmap", "capabilities": {"portMappings": true}}]})),
                Call(Add, "c2"),
                Ours,
                Call(Check, "c2"),
                Call(Del, "c2"),
            ],
        },
    ]
}

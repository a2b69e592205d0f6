//! One case for each of the other plugins of the reference's folder.

use serde_json::{Value, json};

use crate::cases::{Case, WITHOUT_CHECK, bridge, ipam, measured, unmeasured};
use crate::side::Side;

/// The cases. dhcp is missing, because its time is that of the server.
pub(crate) fn all() -> Vec<Case> {
    let after_bridge = |name: &str, program, config: fn(&Side) -> Value| {
        Case::with_addresses(name, vec![unmeasured("bridge", bridge), measured(program, config)])
    };
    let on_device = |name: &str, program, config: fn(&Side) -> Value| Case {
        setup: make_device,
        ..Case::with_addresses(name, vec![measured(program, config)])
    };
    vec![
        Case::new("static", vec![measured("static", static_address)]),
        Case::with_addresses("ptp + host-local", vec![measured("ptp", |side| interface("ptp", side))]),
        Case::with_addresses("ptp + host-local, IPv4 and IPv6", vec![measured("ptp", dual_stack)]),
        on_device("macvlan + host-local", "macvlan", |side| interface("macvlan", side)),
        Case {
            kind: Some("ipvlan"),
            ..on_device("ipvlan + host-local", "ipvlan", |side| interface("ipvlan", side))
        },
        Case { kind: Some("vlan"), ..on_device("vlan + host-local", "vlan", vlan) },
        on_device("host-device + host-local", "host-device", host_device),
        Case {
            kind: Some("dummy"),
            ..Case::with_addresses(
                "dummy + host-local",
                vec![measured("dummy", |side| interface("dummy", side))],
            )
        },
        Case::with_addresses("tap + host-local", vec![measured("tap", |side| interface("tap", side))]),
        Case {
            setup: |_| "iptables -P FORWARD DROP".to_owned(),
            ..after_bridge("firewall (ours by nftables, Go by iptables)", "firewall", firewall)
        },
        after_bridge("tuning", "tuning", tuning),
        // Without CHECK: they move routes, which the reference's bridge then misses.
        Case { verbs: WITHOUT_CHECK, ..after_bridge("sbr", "sbr", |_| json!({"type": "sbr"})) },
        Case {
            kind: Some("vrf"),
            verbs: WITHOUT_CHECK,
            ..after_bridge("vrf", "vrf", |_| json!({"type": "vrf", "vrfname": "vrf0"}))
        },
    ]
}

/// A veth pair: one end is the side's device, and the other makes its carrier.
fn make_device(side: &Side) -> String {
    let (device, other) = (side.device(), format!("far-{}", side.name));
    format!(
        "set -e; ip link add {device} type veth peer name {other}; ip link set {device} up; ip link set {other} up"
    )
}

/// The configuration of a plugin that makes an interface, with all keys that one of them needs.
fn interface(name: &str, side: &Side) -> Value {
    json!({"type": name, "master": side.device(), "ipam": ipam(side)})
}

fn dual_stack(side: &Side) -> Value {
    let mut config = interface("ptp", side);
    let ipv6 = format!("fd00:{}::/64", side.net16().replace('.', ":"));
    config["ipam"]["ranges"]
        .as_array_mut()
        .into_iter()
        .for_each(|ranges| ranges.push(json!([{ "subnet": ipv6 }])));
    config
}

fn vlan(side: &Side) -> Value {
    json!({"type": "vlan", "master": side.device(), "vlanId": 7, "ipam": ipam(side)})
}

fn host_device(side: &Side) -> Value {
    json!({"type": "host-device", "device": side.device(), "ipam": ipam(side)})
}

fn static_address(side: &Side) -> Value {
    let addresses = json!([{"address": format!("{}.0.2/16", side.net16())}]);
    json!({"type": "bridge", "ipam": {"type": "static", "addresses": addresses}})
}

fn firewall(side: &Side) -> Value {
    json!({"type": "firewall", "backend": if side.is_ferrule { "nftables" } else { "iptables" }})
}

fn tuning(_: &Side) -> Value {
    json!({"type": "tuning", "mtu": 1400, "promisc": true, "sysctl": {"net.core.somaxconn": "500"}})
}

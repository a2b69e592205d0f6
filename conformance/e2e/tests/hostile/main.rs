//! A container that works against the node: it has NET_ADMIN in its own network namespace and changes its links, routes and rules
//! between ADD and DEL, also before `ferrule repair`. After DEL or GC nothing of the attachment is left, nothing of the container has come to the node, no other
//! pod has changed, and the next pod gets the address.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod attacks;
mod failing_calls;
mod router;
mod scene;

use serde_json::{Value, json};

use attacks::Attack;
use scene::{Ending, Scene};

/// How the first plugin of a chain makes its interface.
pub(crate) struct Subject {
    /// The main plugin.
    plugin: &'static str,
    /// What the plugin needs on the node, as a shell script.
    prepare: &'static str,
    /// The main plugin's keys beside `type` and `ipam`.
    keys: Value,
    /// The plugins behind it.
    chained: Value,
    /// Keys of the bystander's main plugin.
    bystander: Value,
    /// Whether DEL finds the interface in a namespace that the container has made. It does if the other end of the pair is on
    /// the node.
    is_pair: bool,
    /// Whether ADD makes the interface. Otherwise it is a device of the node, which the container must not delete. Virtual
    /// devices end with the namespace, so such a subject has only the ending [`Ending::Del`].
    is_made: bool,
}

impl Subject {
    fn new(plugin: &'static str, keys: Value, chained: Value) -> Subject {
        Subject {
            plugin,
            prepare: "true",
            keys,
            chained,
            bystander: json!({}),
            is_pair: false,
            is_made: true,
        }
    }

    /// A child of the node's link `uplink0`.
    fn child(plugin: &'static str, keys: Value) -> Subject {
        Subject {
            prepare: "ip link add uplink0 type veth peer name lan0 && ip link set uplink0 up && ip link set lan0 up",
            ..Subject::new(plugin, keys, json!([{"type": "tuning", "allmulti": true}, {"type": "sbr"}]))
        }
    }

    /// Every attack that concerns the interface, with every ending.
    fn resists(&self) {
        let scene = Scene::new(self);
        for attack in Attack::all().filter(|attack| attack.concerns(self)) {
            for ending in Ending::all().filter(|ending| attack.allows(*ending, self)) {
                scene.play(&attack, ending);
            }
        }
    }
}

fn bridge() -> Subject {
    let keys = json!({"bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true});
    let chained = json!([
        {"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "ingressRate": 100_000_000, "ingressBurst": 10_000_000,
            "egressRate": 100_000_000, "egressBurst": 10_000_000},
        {"type": "firewall", "backend": "nftables"}]);
    Subject { is_pair: true, ..Subject::new("bridge", keys, chained) }
}

fn ptp() -> Subject {
    let chained = json!([{"type": "firewall", "backend": "nftables"}, {"type": "sbr"}, {"type": "policy"}]);
    Subject { is_pair: true, ..Subject::new("ptp", json!({"ipMasq": true}), chained) }
}

fn macvlan() -> Subject {
    Subject::child("macvlan", json!({"master": "uplink0", "dad": "off"}))
}

fn ipvlan() -> Subject {
    cni_lab::kernel_module("ipvlan");
    Subject::child("ipvlan", json!({"master": "uplink0", "dad": "off"}))
}

fn vlan() -> Subject {
    cni_lab::kernel_module("8021q");
    let keys = |id: u16| json!({"master": "uplink0", "vlanId": id, "dad": "off"});
    Subject { bystander: keys(6), ..Subject::child("vlan", keys(5)) }
}

fn dummy() -> Subject {
    cni_lab::kernel_module("dummy");
    Subject::new("dummy", json!({"dad": "off"}), json!([{"type": "tuning", "mtu": 1400}]))
}

fn tap() -> Subject {
    Subject::new("tap", json!({"multiQueue": false}), json!([{"type": "tuning", "mtu": 1400}]))
}

fn host_device() -> Subject {
    // Without a carrier ADD would wait for the addresses.
    let device = |number: u8| {
        format!("ip link add nic{number} type veth peer name far{number} && ip link set far{number} up")
    };
    Subject {
        prepare: Box::leak(format!("{} && {}", device(0), device(1)).into_boxed_str()),
        bystander: json!({"device": "nic1"}),
        is_made: false,
        ..Subject::new(
            "host-device",
            json!({"device": "nic0", "dad": "off"}),
            json!([{"type": "tuning", "promisc": true}]),
        )
    }
}

#[test]
fn bridge_with_all_chained_plugins() {
    bridge().resists();
}

#[test]
fn ptp_and_chained_plugins() {
    ptp().resists();
}

#[test]
fn macvlan_and_chained_plugins() {
    macvlan().resists();
}

#[test]
#[ignore = "slow, in a stock kernel: see CONTRIBUTING.md"]
fn ipvlan_and_chained_plugins() {
    ipvlan().resists();
}

#[test]
#[ignore = "slow, in a stock kernel: see CONTRIBUTING.md"]
fn vlan_and_chained_plugins() {
    vlan().resists();
}

#[test]
#[ignore = "slow, in a stock kernel: see CONTRIBUTING.md"]
fn dummy_and_a_chained_plugin() {
    dummy().resists();
}

#[test]
fn tap_and_a_chained_plugin() {
    tap().resists();
}

#[test]
fn host_device_and_a_chained_plugin() {
    host_device().resists();
}

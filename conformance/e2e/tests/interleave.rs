//! Ferrule's and the reference's plugins take turns on one node: each checks and removes what the other has added.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_lab::testing::link_plugin::uplink_of;
use cni_lab::testing::{Origin, Random, ips_of};
use cni_lab::{Node, Place as _, Pod, bin_dir};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

#[path = "common/combinations.rs"]
mod combinations;

use combinations::Combinations;

const STEPS: usize = 200;
/// The reference starts up to 22 iptables programs for each call.
const STEPS_WITH_IPTABLES: usize = 60;
const STEPS_WITH_SBR: usize = 50;
const PODS: usize = 12;
const STORE: &str = "/var/lib/cni/networks/mixed";

fn network(version: &str, plugins: &[Value]) -> Network {
    Network::from_value(&json!({"name": "mixed", "cniVersion": version, "plugins": plugins})).unwrap()
}

fn bridge(ip_masq: bool, ipam: &Value) -> Value {
    json!({"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": ip_masq,
        "capabilities": {"ips": true}, "ipam": ipam})
}

fn host_local() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/28"}], [{"subnet": "fd00:1::/112"}]]})
}

/// A node on which pods are attached and detached in random order.
struct Mixed {
    node: Node,
    pods: Vec<Pod>,
    plugins: Combinations,
    network: Network,
    /// Whose main plugin attached each pod, and the pod's addresses.
    attached: BTreeMap<usize, (Origin, Vec<String>)>,
    /// For each pod, how many of Ferrule's masquerading rules are left because Debian's Go 1.1.1, which knows
    /// only iptables, called DEL. Ferrule's next DEL of the same pod removes them.
    left_rules: BTreeMap<usize, usize>,
}

impl Mixed {
    fn new(names: &[&str], network: Network) -> Mixed {
        let node = Node::new().unwrap();
        if names[0] == "macvlan" {
            uplink_of(&node);
        }
        let pods = (0..PODS).map(|n| node.pod(&format!("pod{n}")).unwrap()).collect();
        Mixed {
            node,
            pods,
            plugins: Combinations::new(names),
            network,
            attached: BTreeMap::new(),
            left_rules: BTreeMap::new(),
        }
    }

    /// The pod's attachment. Only static and tuning need what the runtime asks for.
    fn attachment(&self, pod: usize) -> Attachment {
        let attachment = self.pods[pod].attachment("eth0");
        if !self.has("static") {
            return attachment;
        }
        let ips = json!([format!("10.1.2.{}/28", pod + 2), format!("fd00:1::{}/112", pod + 2)]);
        let mac = json!(format!("c2:00:00:00:00:{:02x}", pod + 2));
        attachment.with_capability("ips", ips).with_capability("mac", mac)
    }

    fn has(&self, plugin: &str) -> bool {
        let is_it = |conf: Option<&Value>| conf.is_some_and(|conf| conf["type"] == plugin);
        let mut plugins = self.network.plugins.iter();
        plugins.any(|conf| conf["type"] == plugin || is_it(conf.get("ipam")))
    }

    fn step(&mut self, pod: usize, random: &mut Random) {
        let (main, who, runtime) = self.plugins.pick(&self.node, random);
        let attachment = self.attachment(pod);
        match self.attached.get(&pod) {
            None => {
                let added = runtime.add(&self.network, &attachment);
                let result = added.unwrap_or_else(|error| panic!("ADD of pod{pod} by {who}: {error}"));
                let ips = ips_of(&result);
                // Behind sbr only packets from the address find a way.
                let ping = format!("ping -c 1 -W 2 -I {} 10.1.2.1", ips[0]);
                self.attached.insert(pod, (main, ips));
                self.pods[pod].sh(&ping).unwrap_or_else(|error| panic!("{who}: {error:#}"));
            }
            Some(_) if random.below(2) == 0 => {
                let checked = runtime.check(&self.network, &attachment);
                if self.has("sbr") && main == Origin::Reference {
                    // The reference's macvlan misses in the main table what sbr has moved.
                    let error = checked.expect_err("Go 1.1.1 looks at the main table").to_string();
                    assert!(error.contains("Failed to find Gateway"), "{who}: {error}");
                    return;
                }
                checked.unwrap_or_else(|error| panic!("CHECK of pod{pod} by {who}: {error}"));
            }
            Some(_) => self.del(pod, random),
        }
        self.assert_consistent();
    }

    fn del(&mut self, pod: usize, random: &mut Random) {
        let (main, who, runtime) = self.plugins.pick(&self.node, random);
        let attachment = self.attachment(pod);
        let (added_by, ips) = self.attached.remove(&pod).unwrap();
        let go_after_us = (added_by, main) == (Origin::Ours, Origin::Reference);
        let mut deleted = runtime.del(&self.network, &attachment);
        if self.masquerades_with_nftables() && go_after_us {
            // Go before 1.6 removes everything and then fails because its iptables chain does not exist. The
            // runtime's second DEL succeeds.
            let error = deleted.expect_err("Go 1.1.1 does not know the chain").to_string();
            assert!(error.contains("CNI-") && error.contains("does not exist"), "{error}");
            deleted = runtime.del(&self.network, &attachment);
            *self.left_rules.entry(pod).or_default() += ips.len();
        }
        if main == Origin::Ours {
            self.left_rules.remove(&pod);
        }
        deleted.unwrap_or_else(|error| panic!("DEL of pod{pod} by {who}: {error}"));
        let left = self.pods[pod].sh("ip rule show | grep 'from 10.' || true; ip -o link show type macvlan");
        assert_eq!(left.unwrap(), "", "pod{pod} after {who}");
    }

    fn masquerades_with_nftables(&self) -> bool {
        let main = &self.network.plugins[0];
        main.get("ipMasq") == Some(&json!(true)) && !main.contains_key("ipMasqBackend")
    }

    /// Expects that store, backup files and links match the attached pods, and that no address is used twice.
    fn assert_consistent(&self) {
        let used: Vec<&str> = self.attached.values().flat_map(|(_, ips)| ips).map(String::as_str).collect();
        let unique: BTreeSet<&str> = used.iter().copied().collect();
        assert_eq!(unique.len(), used.len(), "an address is in use twice: {:?}", self.attached);
        if self.has("host-local") {
            let files = self.node.sh(&format!("ls {STORE}")).unwrap();
            let stored: BTreeSet<&str> =
                files.lines().filter(|name| name.parse::<IpAddr>().is_ok()).collect();
            assert_eq!(stored, unique);
        }
        if self.has("tuning") {
            assert_eq!(self.count("ls -A /run/cni/tuning"), self.attached.len());
        }
        let veths = if self.has("macvlan") { 1 } else { self.attached.len() };
        assert_eq!(self.count("ip -o link show type veth"), veths);
        assert_eq!(
            self.count("ip -4 route show scope host"),
            if self.has("ptp") { self.attached.len() } else { 0 }
        );
    }

    fn count(&self, script: &str) -> usize {
        self.node.sh(&format!("{script} || true")).unwrap().lines().count()
    }
}

fn take_turns(steps: usize, names: &[&str], plugins: &[Value]) {
    let mut mixed = Mixed::new(names, network("1.0.0", plugins));
    let mut random = Random::seeded();
    for _ in 0..steps {
        let pod = random.below(PODS);
        mixed.step(pod, &mut random);
    }
    while let Some(pod) = mixed.attached.keys().next().copied() {
        mixed.del(pod, &mut random);
    }
    mixed.assert_consistent();
    assert_eq!(mixed.count("iptables-nft-save -t nat | grep CNI-"), 0);
    assert_eq!(mixed.count("ip6tables-nft-save -t nat | grep CNI-"), 0);
    let rules = "nft list chain inet cni_plugins_masquerade masq_checks 2>/dev/null | grep saddr";
    assert_eq!(mixed.count(rules), mixed.left_rules.values().sum::<usize>());
    let ours = mixed.node.runtime([bin_dir().unwrap()]);
    ours.gc(&network("1.1.0", plugins), Some(&[])).unwrap();
    assert_eq!(mixed.count(rules), 0);
}

#[test]
fn mixed_calls() {
    take_turns(STEPS, &["bridge", "host-local"], &[bridge(false, &host_local())]);
}

#[test]
fn mixed_calls_with_masquerading() {
    take_turns(STEPS, &["bridge", "host-local"], &[bridge(true, &host_local())]);
}

#[test]
fn mixed_calls_with_static_and_tuning() {
    let tuning = json!({"type": "tuning", "mtu": 1400, "promisc": true, "capabilities": {"mac": true},
        "sysctl": {"net.core.somaxconn": "77", "net.ipv4.conf.all.arp_filter": "1"}});
    let bridge = bridge(false, &json!({"type": "static"}));
    take_turns(STEPS, &["bridge", "static", "tuning"], &[bridge, tuning]);
}

/// Both make the same rules, so each removes the other's.
#[test]
fn mixed_calls_with_ptp() {
    let ptp = json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "iptables", "ipam": host_local()});
    take_turns(STEPS_WITH_IPTABLES, &["ptp", "host-local"], &[ptp]);
}

#[test]
fn mixed_calls_with_macvlan_and_sbr() {
    // With IPv6 the reference waits for duplicate address detection.
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/28"}]]});
    let macvlan = json!({"type": "macvlan", "master": "uplink0", "mode": "bridge", "ipam": ipam});
    take_turns(STEPS_WITH_SBR, &["macvlan", "host-local", "sbr"], &[macvlan, json!({"type": "sbr"})]);
}

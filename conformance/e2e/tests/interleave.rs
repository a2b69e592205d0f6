//! Ferrule's and the reference's bridge and host-local take turns on one node with one store: each checks and
//! removes what the other has added.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_lab::testing::{Origin, PluginDir, Random, ips_of};
use cni_lab::{Node, NodeRuntime, Place as _, Pod, bin_dir};
use cni_runner::Network;
use serde_json::json;

const STEPS: usize = 200;
const PODS: usize = 12;
const STORE: &str = "/var/lib/cni/networks/mixed";

/// The four combinations of bridge and host-local.
struct Combinations(Vec<(Origin, String, PluginDir)>);

impl Combinations {
    fn new() -> Combinations {
        let origins = [Origin::Ours, Origin::Reference];
        let pairs = origins.iter().flat_map(|&bridge| origins.map(|ipam| (bridge, ipam)));
        let folders = pairs.map(|(bridge, ipam)| {
            let plugins = PluginDir::installed(bridge, "bridge").with(ipam, &["host-local"]);
            (bridge, format!("{bridge:?} bridge, {ipam:?} host-local"), plugins)
        });
        Combinations(folders.collect())
    }

    fn pick<'n>(&self, node: &'n Node, random: &mut Random) -> (Origin, &str, NodeRuntime<'n>) {
        let (bridge, who, plugins) = &self.0[random.below(self.0.len())];
        (*bridge, who, node.runtime([plugins.path()]))
    }
}

fn network(version: &str, ip_masq: bool) -> Network {
    Network::from_value(&json!({"name": "mixed", "cniVersion": version, "plugins": [{
        "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": ip_masq,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/28"}], [{"subnet": "fd00:1::/112"}]]}}]}))
    .unwrap()
}

/// A node on which pods are attached and detached in random order.
struct Mixed {
    node: Node,
    pods: Vec<Pod>,
    plugins: Combinations,
    network: Network,
    /// Which bridge attached each pod, and the pod's addresses.
    attached: BTreeMap<usize, (Origin, Vec<String>)>,
    /// For each pod, how many of Ferrule's masquerading rules are left because Debian's Go 1.1.1, which knows
    /// only iptables, called DEL. Ferrule's next DEL of the same pod removes them.
    left_rules: BTreeMap<usize, usize>,
}

impl Mixed {
    fn new(ip_masq: bool) -> Mixed {
        let node = Node::new().unwrap();
        let pods = (0..PODS).map(|n| node.pod(&format!("pod{n}")).unwrap()).collect();
        let network = network("1.0.0", ip_masq);
        Mixed {
            node,
            pods,
            plugins: Combinations::new(),
            network,
            attached: BTreeMap::new(),
            left_rules: BTreeMap::new(),
        }
    }

    fn step(&mut self, pod: usize, random: &mut Random) {
        let (bridge, who, runtime) = self.plugins.pick(&self.node, random);
        let attachment = self.pods[pod].attachment("eth0");
        match self.attached.get(&pod) {
            None => {
                let added = runtime.add(&self.network, &attachment);
                let result = added.unwrap_or_else(|error| panic!("ADD of pod{pod} by {who}: {error}"));
                self.attached.insert(pod, (bridge, ips_of(&result)));
                self.pods[pod]
                    .sh("ping -c 1 -W 2 10.1.2.1")
                    .unwrap_or_else(|error| panic!("{who}: {error:#}"));
            }
            Some(_) if random.below(2) == 0 => {
                let checked = runtime.check(&self.network, &attachment);
                checked.unwrap_or_else(|error| panic!("CHECK of pod{pod} by {who}: {error}"));
            }
            Some(_) => self.del(pod, random),
        }
        self.assert_consistent();
    }

    fn del(&mut self, pod: usize, random: &mut Random) {
        let (bridge, who, runtime) = self.plugins.pick(&self.node, random);
        let attachment = self.pods[pod].attachment("eth0");
        let (added_by, ips) = self.attached.remove(&pod).unwrap();
        let go_after_us = (added_by, bridge) == (Origin::Ours, Origin::Reference);
        let mut deleted = runtime.del(&self.network, &attachment);
        if self.ip_masq() && go_after_us {
            // Go before 1.6 removes everything and then fails because its iptables chain does not exist. The
            // runtime's second DEL succeeds.
            let error = deleted.expect_err("Go 1.1.1 does not know the chain").to_string();
            assert!(error.contains("CNI-") && error.contains("does not exist"), "{error}");
            deleted = runtime.del(&self.network, &attachment);
            *self.left_rules.entry(pod).or_default() += ips.len();
        }
        if bridge == Origin::Ours {
            self.left_rules.remove(&pod);
        }
        deleted.unwrap_or_else(|error| panic!("DEL of pod{pod} by {who}: {error}"));
    }

    fn ip_masq(&self) -> bool {
        self.network.plugins[0]["ipMasq"] == true
    }

    /// Expects that store and links match the attached pods, and that no address is used twice.
    fn assert_consistent(&self) {
        let used: Vec<&str> = self.attached.values().flat_map(|(_, ips)| ips).map(String::as_str).collect();
        let unique: BTreeSet<&str> = used.iter().copied().collect();
        assert_eq!(unique.len(), used.len(), "an address is in use twice: {:?}", self.attached);
        let files = self.node.sh(&format!("ls {STORE}")).unwrap();
        let stored: BTreeSet<&str> = files.lines().filter(|name| name.parse::<IpAddr>().is_ok()).collect();
        assert_eq!(stored, unique);
        assert_eq!(self.count("ip -o link show type veth"), self.attached.len());
    }

    fn count(&self, script: &str) -> usize {
        self.node.sh(&format!("{script} || true")).unwrap().lines().count()
    }
}

fn two_hundred_steps(ip_masq: bool) {
    let mut mixed = Mixed::new(ip_masq);
    let mut random = Random::seeded();
    for _ in 0..STEPS {
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
    ours.gc(&network("1.1.0", ip_masq), Some(&[])).unwrap();
    assert_eq!(mixed.count(rules), 0);
}

#[test]
fn mixed_calls() {
    two_hundred_steps(false);
}

#[test]
fn mixed_calls_with_masquerading() {
    two_hundred_steps(true);
}

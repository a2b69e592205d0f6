//! Ferrule's and the reference's bridge and host-local take turns on one node with one store: each checks and
//! removes what the other has added.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use cni_lab::{Node, NodeRuntime, Place as _, Pod, bin_dir, go_bin_dir};
use cni_runner::Network;
use serde_json::{Value, json};
use tempfile::TempDir;

const STEPS: usize = 200;
const PODS: usize = 12;
const STORE: &str = "/var/lib/cni/networks/mixed";

/// Random numbers (xorshift). `FERRULE_SEED` repeats a run.
struct Random(u64);

impl Random {
    fn seeded() -> Random {
        let seed = std::env::var("FERRULE_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
        println!("FERRULE_SEED={seed}");
        Random(seed | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }
}

/// Whose program runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Maker {
    Ferrule,
    Go,
}

struct Makers {
    folders: Vec<(Maker, Maker, PathBuf)>,
    _tmp: TempDir,
}

impl Makers {
    /// A folder for each of the four combinations of bridge and host-local.
    fn new() -> Makers {
        let tmp = TempDir::new().unwrap();
        let dir = |maker| if maker == Maker::Go { go_bin_dir().unwrap() } else { bin_dir().unwrap() };
        let mut folders = Vec::new();
        for bridge in [Maker::Ferrule, Maker::Go] {
            for ipam in [Maker::Ferrule, Maker::Go] {
                let folder = tmp.path().join(format!("{bridge:?}-{ipam:?}"));
                std::fs::create_dir(&folder).unwrap();
                symlink(dir(bridge).join("bridge"), folder.join("bridge")).unwrap();
                symlink(dir(ipam).join("host-local"), folder.join("host-local")).unwrap();
                folders.push((bridge, ipam, folder));
            }
        }
        Makers { folders, _tmp: tmp }
    }

    fn pick<'n>(&self, node: &'n Node, random: &mut Random) -> (Maker, String, NodeRuntime<'n>) {
        let (bridge, ipam, folder) = &self.folders[random.below(self.folders.len())];
        (*bridge, format!("{bridge:?} bridge, {ipam:?} host-local"), node.runtime([folder]))
    }
}

fn network(version: &str, ip_masq: bool) -> Network {
    Network::from_value(&json!({"name": "mixed", "cniVersion": version, "plugins": [{
        "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": ip_masq,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/28"}], [{"subnet": "fd00:1::/112"}]]}}]}))
    .unwrap()
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap();
    ips.iter().map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

/// A node on which pods are attached and detached in random order.
struct Mixed {
    node: Node,
    pods: Vec<Pod>,
    makers: Makers,
    network: Network,
    /// Which bridge attached each pod, and the pod's addresses.
    attached: BTreeMap<usize, (Maker, Vec<String>)>,
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
            makers: Makers::new(),
            network,
            attached: BTreeMap::new(),
            left_rules: BTreeMap::new(),
        }
    }

    fn step(&mut self, pod: usize, random: &mut Random) {
        let (bridge, who, runtime) = self.makers.pick(&self.node, random);
        let attachment = self.pods[pod].attachment("eth0");
        match self.attached.get(&pod) {
            None => {
                let added = runtime.add(&self.network, &attachment);
                let result = added.unwrap_or_else(|error| panic!("ADD of pod{pod} by {who}: {error}"));
                self.attached.insert(pod, (bridge, addresses(&result)));
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
        let (bridge, who, runtime) = self.makers.pick(&self.node, random);
        let attachment = self.pods[pod].attachment("eth0");
        let (added_by, ips) = self.attached.remove(&pod).unwrap();
        let go_after_us = (added_by, bridge) == (Maker::Ferrule, Maker::Go);
        let mut deleted = runtime.del(&self.network, &attachment);
        if self.ip_masq() && go_after_us {
            // Go before 1.6 removes everything and then fails because its iptables chain does not exist. The
            // runtime's second DEL succeeds.
            let error = deleted.expect_err("Go 1.1.1 does not know the chain").to_string();
            assert!(error.contains("CNI-") && error.contains("does not exist"), "{error}");
            deleted = runtime.del(&self.network, &attachment);
            *self.left_rules.entry(pod).or_default() += ips.len();
        }
        if bridge == Maker::Ferrule {
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

//! A test node with containers behind bridges and a firewall plugin, servers, and clients.
#![allow(dead_code)] // each test program uses a part

use std::net::SocketAddr;
use std::ops::Deref;

use cni_lab::Place as _;
use cni_lab::testing::{
    self, Added, Origin, PluginDir, Random, TestContext, ask, bridged, iptables, overlay, silent,
};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

/// The plugin under test.
pub(crate) const FIREWALL: &str = env!("CARGO_BIN_EXE_firewall");

/// Our bridge, host-local and portmap, and a firewall plugin.
pub(crate) fn plugins(firewall: Origin) -> PluginDir {
    PluginDir::new(FIREWALL, firewall).with(Origin::Ours, &["bridge", "host-local", "portmap"])
}

/// The same node with a program whose ADD is the repair of firewall.
pub(crate) fn repairing(ctx: &TestContext) -> TestContext {
    TestContext { plugin: env!("CARGO_BIN_EXE_firewall-repair").into(), ..ctx.clone() }
}

/// A node, and the shortcuts of these tests.
pub(crate) struct World(testing::World);

impl Deref for World {
    type Target = testing::World;

    fn deref(&self) -> &testing::World {
        &self.0
    }
}

impl World {
    pub(crate) fn new() -> World {
        World::by(Origin::Ours)
    }

    pub(crate) fn by(firewall: Origin) -> World {
        World(testing::World::new(plugins(firewall)))
    }

    /// Starts a pod.
    pub(crate) fn add(&self, name: &str, network: &Network) -> Added<'_> {
        self.0.add(name, network, &json!([]))
    }

    /// Whether bridged packets pass the hook `forward`.
    pub(crate) fn set_bridge_nf(&self, on: bool) {
        for family in ["ip", "ip6"] {
            let setting = format!("/proc/sys/net/bridge/bridge-nf-call-{family}tables");
            self.node.write_file(setting, if on { "1" } else { "0" }).unwrap();
        }
    }

    /// Our table as `nft` prints it; empty if it does not exist.
    pub(crate) fn table(&self) -> String {
        self.nft_table("cni_firewall")
    }

    /// The elements of a set as `nft` prints them; empty for an empty set.
    pub(crate) fn set(&self, name: &str) -> String {
        let listed =
            self.node.tool("nft", &["list", "set", "inet", "cni_firewall", name]).unwrap_or_default();
        listed
            .split_once("elements = { ")
            .map_or(String::new(), |(_, rest)| rest.split(" }").next().unwrap().to_owned())
    }
}

/// The filter tables of both families in one variant of iptables, without comments and counters.
pub(crate) fn saved(world: &World, variant: &str) -> String {
    iptables::saved_table(&world.node, variant, "filter")
}

/// The lines without those of the forward chain, which the reference does not have.
pub(crate) fn without_forward_chain(saved: &str) -> String {
    saved.lines().filter(|line| !line.contains("FERRULE-FORWARD")).map(|line| format!("{line}\n")).collect()
}

/// Adds 5,000 other containers to the sets.
pub(crate) fn fill(world: &World) {
    let element =
        |number| format!("10.200.{}.{} comment \"pods/eth0/pod{number}\"", number / 250, number % 250 + 1);
    let elements = (0..5000).map(element).collect::<Vec<_>>().join(",");
    let script = format!("add element inet cni_firewall pods4 {{ {elements} }}\n");
    world.node.write_file("/run/fill.nft", &script).unwrap();
    world.node.tool("nft", &["-f", "/run/fill.nft"]).unwrap();
}

/// Panics unless one pod reaches the server of another one, or does not, in both families.
pub(crate) fn expect_pod(from: &Added<'_>, to: &Added<'_>, reached: bool, what: &str) {
    for v6 in [false, true] {
        let what = format!("{what}: {} to {}", from.pod.name(), to.pod.name());
        expect(&from.pod, SocketAddr::new(to.address(v6), 80), reached, &what);
    }
}

/// Panics unless a TCP server answers, or does not.
pub(crate) fn expect(from: &impl cni_lab::Place, to: SocketAddr, answers: bool, what: &str) {
    if answers {
        ask(from, "tcp", to).unwrap_or_else(|error| panic!("{what}: {error}"));
    } else {
        assert!(silent(from, "tcp", to), "{what}: {to} answers");
    }
}

/// A network of a bridge with addresses of both families, portmap, and firewall with these keys.
pub(crate) fn network_of(name: &str, bridge: &str, number: u8, version: &str, keys: Value) -> Network {
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    bridged(name, bridge, number, version, &[portmap, overlay(&json!({"type": "firewall"}), &keys)])
}

pub(crate) fn pods(keys: Value) -> Network {
    network_of("pods", "cni0", 0, "1.1.0", keys)
}

pub(crate) fn more(keys: Value) -> Network {
    network_of("more", "cni1", 1, "1.1.0", keys)
}

/// A host port 8080 that leads to port 80.
pub(crate) fn host_port() -> Value {
    json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}])
}

/// The reference, whose node this is, and we take turns in random order: ADD by one, CHECK and DEL by the other. `opened` counts the
/// addresses that are open.
pub(crate) fn take_turns(world: &World, theirs: &TestContext, backend: &str, opened: impl Fn() -> usize) {
    const PODS: usize = 4;
    let ours = theirs.with_plugins(plugins(Origin::Ours));
    let network = |version| network_of("pods", "cni0", 0, version, json!({"backend": backend}));
    let attachments: Vec<Attachment> =
        (0..PODS).map(|number| world.pod(&format!("pod{number}")).attachment("eth0")).collect();
    let mut random = Random::seeded();
    let mut attached = [false; PODS];
    for step in 0..40 {
        let number = random.below(PODS);
        let runtime = [theirs, &ours][random.below(2)].runtime();
        let (network, attachment) = (network("1.0.0"), &attachments[number]);
        let (verb, outcome) = match (attached[number], random.below(2)) {
            (false, _) => ("ADD", runtime.add(&network, attachment).map(drop)),
            (true, 0) => ("CHECK", runtime.check(&network, attachment)),
            (true, _) => ("DEL", runtime.del(&network, attachment)),
        };
        outcome.unwrap_or_else(|error| panic!("step {step}: {verb}: {error}"));
        attached[number] = verb != "DEL";
        assert_eq!(opened(), 2 * attached.iter().filter(|is| **is).count(), "step {step}: {verb}");
    }
    for attachment in &attachments {
        ours.runtime().del(&network("1.0.0"), attachment).unwrap();
    }
    assert_eq!(opened(), 0);
    ours.runtime().gc(&network("1.1.0"), Some(&[])).unwrap();
    assert_eq!(["others4", "others6"].map(|set| world.set(set)), [const { String::new() }; 2]);
}

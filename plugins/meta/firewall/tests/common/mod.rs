//! A test node with containers behind bridges and a firewall plugin, servers, and clients.
#![allow(dead_code)] // each test program uses a part

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

use cni_lab::testing::{
    Origin, PluginDir, Random, TestContext, ask, host_local, ips_of, iptables, overlay, serve, silent,
    with_prev,
};
use cni_lab::{Client, Place as _, Pod};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

/// The plugin under test.
pub(crate) const FIREWALL: &str = env!("CARGO_BIN_EXE_firewall");

/// Our bridge, host-local and portmap, and a firewall plugin.
pub(crate) fn plugins(firewall: Origin) -> PluginDir {
    PluginDir::new(FIREWALL, firewall).with(Origin::Ours, &["bridge", "host-local", "portmap"])
}

/// A node, and one outside client for each family.
pub(crate) struct World {
    pub(crate) ctx: TestContext,
    pub(crate) outside: [Client; 2],
}

impl Deref for World {
    type Target = TestContext;

    fn deref(&self) -> &TestContext {
        &self.ctx
    }
}

impl World {
    pub(crate) fn new() -> World {
        World::by(Origin::Ours)
    }

    pub(crate) fn by(firewall: Origin) -> World {
        let ctx = TestContext::new(plugins(firewall));
        let outside =
            ["192.0.2.0/24", "2001:db8::/64"].map(|subnet| ctx.node.outside_client(subnet).unwrap());
        World { ctx, outside }
    }

    /// Starts a pod.
    pub(crate) fn add(&self, name: &str, network: &Network) -> Added<'_> {
        self.add_with(&self.ctx, name, network, json!([]))
    }

    /// [`World::add`] by this context's runtime, with port mappings.
    pub(crate) fn add_with(
        &self,
        ctx: &TestContext,
        name: &str,
        network: &Network,
        ports: Value,
    ) -> Added<'_> {
        let pod = self.pod(name);
        pod.sh("ip link set lo up").unwrap();
        let attachment = pod.attachment("eth0").with_capability("portMappings", ports);
        let result = ctx.runtime().add(network, &attachment).unwrap();
        Added { world: self, pod, attachment, network: network.clone(), result }
    }

    /// Whether bridged packets pass the hook `forward`.
    pub(crate) fn set_bridge_nf(&self, on: bool) {
        for family in ["ip", "ip6"] {
            let setting = format!("/proc/sys/net/bridge/bridge-nf-call-{family}tables");
            self.node.write_file(setting, if on { "1" } else { "0" }).unwrap();
        }
    }

    pub(crate) fn nft(&self, script: &str) {
        self.node.tool("nft", &[script]).unwrap();
    }

    /// Our table as `nft` prints it; empty if it does not exist.
    pub(crate) fn table(&self) -> String {
        self.node.tool("nft", &["-s", "list", "table", "inet", "cni_firewall"]).unwrap_or_default()
    }

    /// The elements of a set as `nft` prints them; empty if there are none.
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

/// The lines without those of the gate, which the reference does not have.
pub(crate) fn without_gate(saved: &str) -> String {
    saved.lines().filter(|line| !line.contains("FERRULE-FORWARD")).map(|line| format!("{line}\n")).collect()
}

/// An attached pod.
pub(crate) struct Added<'w> {
    pub(crate) world: &'w World,
    pub(crate) pod: Pod,
    pub(crate) attachment: Attachment,
    pub(crate) network: Network,
    pub(crate) result: Value,
}

impl Added<'_> {
    pub(crate) fn address(&self, v6: bool) -> IpAddr {
        let mut ips = ips_of(&self.result).into_iter().map(|ip| ip.parse::<IpAddr>().unwrap());
        ips.find(|ip| ip.is_ipv6() == v6).unwrap()
    }

    pub(crate) fn del(&self) {
        self.world.runtime().del(&self.network, &self.attachment).unwrap();
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_by(&self.world.ctx)
    }

    /// [`Added::check`] by this context's runtime.
    pub(crate) fn check_by(&self, ctx: &TestContext) -> Result<(), String> {
        ctx.runtime().check(&self.network, &self.attachment).map_err(|error| error.to_string())
    }

    /// Starts servers on a port of the pod: TCP and UDP, both families.
    pub(crate) fn serve(&self, port: u16) {
        serve(&self.pod, self.pod.name(), port);
    }

    /// Panics unless this pod reaches the server of another one, or does not, in both families.
    pub(crate) fn expect(&self, other: &Added<'_>, reached: bool, what: &str) {
        for v6 in [false, true] {
            let what = format!("{what}: {} to {}", self.pod.name(), other.pod.name());
            expect(&self.pod, SocketAddr::new(other.address(v6), 80), reached, &what);
        }
    }

    /// The configuration of firewall as a runtime would send it, with the result of the ADD as `prevResult`.
    pub(crate) fn config(&self) -> Value {
        let firewall = self.network.plugins.iter().find(|plugin| plugin["type"] == "firewall").unwrap();
        let mut config = Value::Object(firewall.clone());
        config["name"] = json!(self.network.name);
        config["cniVersion"] = json!(self.network.version);
        with_prev(&config, &self.result)
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
    let firewall = overlay(&json!({"type": "firewall"}), &keys);
    let subnets = [format!("10.1.{number}.0/24"), format!("fd00:{number}::/64")];
    let bridge = json!({"type": "bridge", "bridge": bridge, "isDefaultGateway": true, "hairpinMode": true,
        "ipam": host_local(&[&subnets[0], &subnets[1]])});
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let list = json!({"name": name, "cniVersion": version, "plugins": [bridge, portmap, firewall]});
    Network::from_value(&list).unwrap()
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

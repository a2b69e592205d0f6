//! A node with bridged containers and outside clients: what the tests of the plugins after `bridge` need.

use std::net::IpAddr;
use std::ops::Deref;

use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

use super::{PluginDir, TestContext, host_local, ips_of, serve, with_prev};
use crate::{Client, Place as _, Pod};

/// The subnets that the outside clients share with the node.
pub const OUTSIDE: [&str; 2] = ["192.0.2.0/24", "2001:db8::/64"];

/// A node, and one outside client for each family.
#[derive(Debug)]
pub struct World {
    /// The node, with the plugin under test.
    pub ctx: TestContext,
    /// The clients: IPv4, IPv6.
    pub outside: [Client; 2],
}

impl Deref for World {
    type Target = TestContext;

    fn deref(&self) -> &TestContext {
        &self.ctx
    }
}

impl World {
    /// A new node.
    pub fn new(plugins: PluginDir) -> World {
        let ctx = TestContext::new(plugins);
        let outside = OUTSIDE.map(|subnet| ctx.node.outside_client(subnet).unwrap());
        World { ctx, outside }
    }

    /// Starts a pod with these port mappings.
    pub fn add(&self, name: &str, network: &Network, ports: &Value) -> Added<'_> {
        self.add_by(&self.ctx, name, network, ports)
    }

    /// [`World::add`] by this context's runtime.
    pub fn add_by(&self, ctx: &TestContext, name: &str, network: &Network, ports: &Value) -> Added<'_> {
        let pod = self.pod(name);
        pod.sh("ip link set lo up").unwrap();
        let attachment = pod.attachment("eth0").with_capability("portMappings", ports.clone());
        let result = ctx.runtime().add(network, &attachment).unwrap();
        Added { world: self, pod, attachment, network: network.clone(), result }
    }

    /// The node's address in the subnet of the outside client.
    pub fn address(&self, v6: bool) -> IpAddr {
        self.outside[usize::from(v6)].node_address()
    }

    /// Runs an `nft` script on the node.
    pub fn nft(&self, script: &str) {
        self.node.tool("nft", &[script]).unwrap();
    }

    /// The ruleset as `nft` prints it, without counters.
    pub fn listing(&self) -> String {
        self.node.tool("nft", &["-s", "list", "ruleset"]).unwrap()
    }

    /// A table of the family inet as `nft` prints it, without counters; empty if it does not exist.
    pub fn nft_table(&self, name: &str) -> String {
        self.node.tool("nft", &["-s", "list", "table", "inet", name]).unwrap_or_default()
    }
}

/// A container with a macvlan on a veth of the node, 10.9.0.2 behind the node's 10.9.0.1, that sends all packets with these bits of the
/// mark. The node gets them with the mark.
pub fn marking_container(ctx: &TestContext, bits: &[u8]) -> Pod {
    let (pod, mark) = (ctx.pod("marking"), bits.iter().fold(0_u32, |mark, bit| mark | 1 << bit));
    let on_node = "set -e; ip link add virt0 type veth peer name virt1
        ip link set virt0 up; ip link set virt1 up; ip address add 10.9.0.1/24 dev virt1
        ip link add eth0 link virt0 netns marking type macvlan mode bridge
        echo 1 > /proc/sys/net/ipv4/ip_forward";
    let in_pod = format!(
        "set -e; ip address add 10.9.0.2/24 dev eth0; ip link set eth0 up; ip route add default via 10.9.0.1
        nft 'add table ip marks
        add chain ip marks out {{ type route hook output priority 0; }}
        add rule ip marks out meta mark set {mark:#x}'"
    );
    ctx.node.sh(on_node).unwrap();
    pod.sh(&in_pod).unwrap();
    pod
}

/// An attached pod.
#[derive(Debug)]
pub struct Added<'w> {
    /// The node.
    pub world: &'w World,
    /// The pod.
    pub pod: Pod,
    /// Its attachment.
    pub attachment: Attachment,
    /// The network.
    pub network: Network,
    /// The result of ADD.
    pub result: Value,
}

impl Added<'_> {
    /// The pod's first address of a family.
    pub fn address(&self, v6: bool) -> IpAddr {
        let mut ips = ips_of(&self.result).into_iter().map(|ip| ip.parse::<IpAddr>().unwrap());
        ips.find(|ip| ip.is_ipv6() == v6).unwrap()
    }

    /// Removes the attachment.
    pub fn del(&self) {
        self.world.runtime().del(&self.network, &self.attachment).unwrap();
    }

    /// Checks the attachment. An error is the error's text.
    pub fn check(&self) -> Result<(), String> {
        self.check_by(&self.world.ctx)
    }

    /// [`Added::check`] by this context's runtime.
    pub fn check_by(&self, ctx: &TestContext) -> Result<(), String> {
        ctx.runtime().check(&self.network, &self.attachment).map_err(|error| error.to_string())
    }

    /// Starts servers on a port of the pod: TCP and UDP, both families.
    pub fn serve(&self, port: u16) {
        serve(&self.pod, self.pod.name(), port);
    }

    /// The configuration of the plugin under test as a runtime would send it, with the result of the ADD as `prevResult`.
    pub fn config(&self) -> Value {
        let name = self.world.plugin.file_name().unwrap().to_str().unwrap();
        let plugin = self.network.plugins.iter().find(|plugin| plugin["type"] == name).unwrap();
        let mut config = Value::Object(plugin.clone());
        config["name"] = json!(self.network.name);
        config["cniVersion"] = json!(self.network.version);
        let requested = config.get("capabilities").is_some_and(|wanted| wanted["portMappings"] == true);
        if requested {
            config["runtimeConfig"] = json!({"portMappings": self.attachment.capabilities["portMappings"]});
        }
        with_prev(&config, &self.result)
    }
}

/// A network of a bridge with addresses of both families, and these plugins after it. Networks with other numbers have
/// other subnets.
pub fn bridged(name: &str, bridge: &str, number: u8, version: &str, chained: &[Value]) -> Network {
    let subnets = [format!("10.1.{number}.0/24"), format!("fd00:{number}::/64")];
    let bridge = json!({"type": "bridge", "bridge": bridge, "isDefaultGateway": true, "hairpinMode": true,
        "ipam": host_local(&[&subnets[0], &subnets[1]])});
    let plugins = [&[bridge], chained].concat();
    Network::from_value(&json!({"name": name, "cniVersion": version, "plugins": plugins})).unwrap()
}

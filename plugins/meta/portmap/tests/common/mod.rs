//! A test node with containers behind bridges and a portmap plugin, servers that report the client's address,
//! and clients.
#![allow(dead_code)] // each test program uses a part

pub(crate) mod ipvs;

use std::net::IpAddr;
use std::ops::Deref;

use cni_lab::testing::{Origin, PluginDir, TestContext, host_local, ips_of, overlay, serve, with_prev};
use cni_lab::{Client, Place as _, Pod};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

/// The plugin under test.
pub(crate) const PORTMAP: &str = env!("CARGO_BIN_EXE_portmap");
/// The subnets that the outside clients share with the node.
pub(crate) const OUTSIDE: [&str; 2] = ["192.0.2.0/24", "2001:db8::/64"];
/// Our bridge and host-local, and a portmap plugin.
pub(crate) fn plugins(portmap: Origin) -> PluginDir {
    PluginDir::new(PORTMAP, portmap).with(Origin::Ours, &["bridge", "host-local"])
}

/// A node with the networks `pods` on bridge cni0 and `more` on bridge cni1, and one outside client for each
/// family.
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

    pub(crate) fn by(portmap: Origin) -> World {
        let ctx = TestContext::new(plugins(portmap));
        let outside = OUTSIDE.map(|subnet| ctx.node.outside_client(subnet).unwrap());
        World { ctx, outside }
    }

    /// Starts a pod with these mappings.
    pub(crate) fn add(&self, name: &str, network: &Network, mappings: &Value) -> Added<'_> {
        self.add_by(&self.ctx, name, network, mappings)
    }

    /// [`World::add`] by this context's runtime.
    pub(crate) fn add_by(
        &self,
        ctx: &TestContext,
        name: &str,
        network: &Network,
        mappings: &Value,
    ) -> Added<'_> {
        let pod = self.pod(name);
        pod.sh("ip link set lo up").unwrap();
        let attachment = pod.attachment("eth0").with_capability("portMappings", mappings.clone());
        let result = ctx.runtime().add(network, &attachment).unwrap();
        Added { world: self, pod, attachment, network: network.clone(), result }
    }

    /// The node's address in the subnet of the outside client.
    pub(crate) fn address(&self, v6: bool) -> IpAddr {
        self.outside[usize::from(v6)].node_address()
    }

    pub(crate) fn nft(&self, script: &str) {
        self.node.tool("nft", &[script]).unwrap();
    }

    pub(crate) fn listing(&self) -> String {
        self.node.tool("nft", &["-s", "list", "ruleset"]).unwrap()
    }

    /// Our table as `nft` prints it; empty if it does not exist.
    pub(crate) fn table(&self) -> String {
        self.node.tool("nft", &["-s", "list", "table", "inet", "cni_portmap"]).unwrap_or_default()
    }

    /// The number of elements in the dnat maps: only these have a comment and a value.
    pub(crate) fn count(&self) -> usize {
        self.table().matches("\" : ").count()
    }
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
        self.world.runtime().check(&self.network, &self.attachment).map_err(|error| error.to_string())
    }

    /// Starts servers on a port of the pod: TCP and UDP, both families.
    pub(crate) fn serve(&self, port: u16) {
        serve(&self.pod, self.pod.name(), port);
    }

    /// The configuration of portmap as a runtime would send it, with the result of the ADD as `prevResult`.
    pub(crate) fn config(&self) -> Value {
        let mut config = Value::Object(self.network.plugins.last().unwrap().clone());
        config["name"] = json!(self.network.name);
        config["cniVersion"] = json!(self.network.version);
        config["runtimeConfig"] = json!({"portMappings": self.attachment.capabilities["portMappings"]});
        with_prev(&config, &self.result)
    }
}

/// A network of a bridge with addresses of both families, and portmap with these keys.
pub(crate) fn network_of(name: &str, bridge: &str, number: u8, version: &str, keys: Value) -> Network {
    let portmap = overlay(&json!({"type": "portmap", "capabilities": {"portMappings": true}}), &keys);
    let subnets = [format!("10.1.{number}.0/24"), format!("fd00:{number}::/64")];
    let bridge = json!({"type": "bridge", "bridge": bridge, "isDefaultGateway": true, "hairpinMode": true,
        "ipam": host_local(&[&subnets[0], &subnets[1]])});
    let list = json!({"name": name, "cniVersion": version, "plugins": [bridge, portmap]});
    Network::from_value(&list).unwrap()
}

pub(crate) fn pods(keys: Value) -> Network {
    network_of("pods", "cni0", 0, "1.1.0", keys)
}

pub(crate) fn more(keys: Value) -> Network {
    network_of("more", "cni1", 1, "1.1.0", keys)
}

pub(crate) fn mapping(proto: &str, host_ip: &str, host: u16, container: u16) -> Value {
    json!({"hostPort": host, "containerPort": container, "protocol": proto, "hostIP": host_ip})
}

/// The mapping of a host port to a container port for TCP.
pub(crate) fn over_tcp(host: u16, container: u16) -> Value {
    json!([mapping("tcp", "", host, container)])
}

/// Mappings of a host port to a container port, for TCP and UDP.
pub(crate) fn both(host: u16, container: u16) -> Value {
    json!([mapping("tcp", "", host, container), mapping("udp", "", host, container)])
}

/// Adds 10 attachments with 1,000 mappings each, on host ports 10000 to 19999.
pub(crate) fn fill(world: &World) {
    let base = world.add("base", &pods(json!({})), &json!([]));
    for pod in 0..10_u16 {
        let ports = (0..1000).map(|port| mapping("tcp", "", 10_000 + pod * 1000 + port, 80));
        let mut config = base.config();
        config["prevResult"]["ips"] =
            json!([{"address": format!("10.1.0.{}/24", pod + 100), "interface": 2}]);
        config["runtimeConfig"]["portMappings"] = Value::Array(ports.collect());
        let attachment = Attachment::new(format!("pod{pod}"), base.attachment.netns.clone(), "eth0");
        world.ctx.add(&attachment, &config);
    }
}

//! A test node with containers behind bridges and a portmap plugin, servers that report the client's address,
//! and clients.
#![allow(dead_code)] // each test program uses a part

pub(crate) mod ipvs;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Deref;

use cni_lab::testing::{self, Added, Origin, PluginDir, TestContext, bridged, overlay};
use cni_lab::{Place as _, TIMEOUT};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

/// The plugin under test.
pub(crate) const PORTMAP: &str = env!("CARGO_BIN_EXE_portmap");
/// Our bridge and host-local, and a portmap plugin.
pub(crate) fn plugins(portmap: Origin) -> PluginDir {
    PluginDir::new(PORTMAP, portmap).with(Origin::Ours, &["bridge", "host-local"])
}

/// The same node with a program whose ADD is the repair of portmap.
pub(crate) fn repairing(ctx: &TestContext) -> TestContext {
    TestContext { plugin: env!("CARGO_BIN_EXE_portmap-repair").into(), ..ctx.clone() }
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

    pub(crate) fn by(portmap: Origin) -> World {
        World(testing::World::new(plugins(portmap)))
    }

    /// Our table as `nft` prints it; empty if it does not exist.
    pub(crate) fn table(&self) -> String {
        self.nft_table("cni_portmap")
    }

    /// The number of elements in the dnat maps: only these and those of pods have a comment and a value. That of a pod is a number.
    pub(crate) fn count(&self) -> usize {
        let table = self.table();
        table.matches("\" : ").count() - table.matches("\" : 0x").count()
    }
}

/// A network of a bridge with addresses of both families, and portmap with these keys.
pub(crate) fn network_of(name: &str, bridge: &str, number: u8, version: &str, keys: Value) -> Network {
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    bridged(name, bridge, number, version, &[overlay(&portmap, &keys)])
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

/// Answers one TCP connection to a port of the pod with the bytes that it gets, until its end.
pub(crate) fn echo(pod: &Added<'_>, port: u16) {
    let listener = pod.pod.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
}

/// Panics unless the connection still carries bytes.
pub(crate) fn echoes(mut stream: &TcpStream, what: &str) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{what}: {error}"));
}

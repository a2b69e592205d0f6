//! A test node with containers behind bridges and a portmap plugin, servers that report the client's address,
//! and clients.
#![allow(dead_code)] // each test program uses a part

pub(crate) mod ipvs;
pub(crate) mod programs;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cni_lab::{Client, Node, NodeRuntime, Place, Pod, TIMEOUT, bin_dir, go_bin_dir};
use cni_runner::{Attachment, Exec, Network, Output};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The plugin under test.
pub(crate) const PORTMAP: &str = env!("CARGO_BIN_EXE_portmap");
/// The subnets that the outside clients share with the node.
pub(crate) const OUTSIDE: [&str; 2] = ["192.0.2.0/24", "2001:db8::/64"];
/// How long a client waits if no answer is expected. If an answer is expected, it waits [`TIMEOUT`].
pub(crate) const NO_ANSWER_WAIT: Duration = Duration::from_millis(400);

/// Which implementation of portmap: ours or the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Us,
    Go,
}

/// A directory with our bridge and host-local, and a portmap plugin.
pub(crate) struct Bins(TempDir);

impl Bins {
    pub(crate) fn new(portmap: By) -> Bins {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bridge", "host-local"] {
            symlink(bin_dir().unwrap().join(name), dir.path().join(name)).unwrap();
        }
        let portmap = match portmap {
            By::Us => PathBuf::from(PORTMAP),
            By::Go => go_bin_dir().unwrap().join("portmap"),
        };
        symlink(portmap, dir.path().join("portmap")).unwrap();
        Bins(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A node with the networks `pods` on bridge cni0 and `more` on bridge cni1, and one outside client for each
/// family.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) bins: Bins,
    pub(crate) outside: [Client; 2],
}

impl World {
    pub(crate) fn new() -> World {
        World::by(By::Us)
    }

    pub(crate) fn by(portmap: By) -> World {
        let node = Node::new().unwrap();
        let outside = OUTSIDE.map(|subnet| node.outside_client(subnet).unwrap());
        World { node, bins: Bins::new(portmap), outside }
    }

    pub(crate) fn runtime(&self) -> NodeRuntime<'_> {
        self.node.runtime([self.bins.path()])
    }

    /// Starts a pod with these mappings.
    pub(crate) fn add(&self, name: &str, network: &Network, mappings: &Value) -> Added<'_> {
        let pod = self.node.pod(name).unwrap();
        pod.sh("ip link set lo up").unwrap();
        self.attach(pod, "eth0", network, mappings)
    }

    pub(crate) fn attach(&self, pod: Pod, ifname: &str, network: &Network, mappings: &Value) -> Added<'_> {
        let attachment = pod.attachment(ifname).with_capability("portMappings", mappings.clone());
        let result = self.runtime().add(network, &attachment).unwrap();
        let addresses = addresses(&result);
        Added { world: self, pod, attachment, network: network.clone(), addresses, result }
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

    /// Calls portmap directly, without a runtime.
    pub(crate) fn call(&self, verb: &str, attachment: &Attachment, config: &Value) -> Output {
        let exec = Exec::new(self.bins.path().join("portmap"), verb)
            .attachment(attachment)
            .stdin(config.to_string());
        self.node.call(&exec).unwrap()
    }
}

pub(crate) fn addresses(result: &Value) -> Vec<IpAddr> {
    let ips = result["ips"].as_array().cloned().unwrap_or_default();
    let ip = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap();
    ips.iter().map(ip).collect()
}

/// An attached pod.
pub(crate) struct Added<'w> {
    pub(crate) world: &'w World,
    pub(crate) pod: Pod,
    pub(crate) attachment: Attachment,
    pub(crate) network: Network,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) result: Value,
}

impl Added<'_> {
    pub(crate) fn address(&self, v6: bool) -> IpAddr {
        *self.addresses.iter().find(|ip| ip.is_ipv6() == v6).unwrap()
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
        config["prevResult"] = self.result.clone();
        config
    }
}

/// A network of a bridge with addresses of both families, and portmap with these keys.
pub(crate) fn network_of(name: &str, bridge: &str, number: u8, version: &str, keys: Value) -> Network {
    let mut portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    portmap.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let subnets = [format!("10.1.{number}.0/24"), format!("fd00:{number}::/64")];
    let bridge = json!({"type": "bridge", "bridge": bridge, "isDefaultGateway": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnets[0]}], [{"subnet": subnets[1]}]]}});
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

/// Mappings of a host port to a container port, for TCP and UDP.
pub(crate) fn both(host: u16, container: u16) -> Value {
    json!([mapping("tcp", "", host, container), mapping("udp", "", host, container)])
}

/// Starts servers on a port of that place until the test ends. They answer with a name and the client's
/// address. A socket stays in the namespace in which it was created, so only the creation runs there.
pub(crate) fn serve(place: &impl Place, name: &str, port: u16) {
    serve_at(place, name, (std::net::Ipv6Addr::UNSPECIFIED, port).into());
}

pub(crate) fn serve_at(place: &impl Place, name: &str, address: SocketAddr) {
    let listener = place.run(|| TcpListener::bind(address)).unwrap().unwrap();
    let greeting = name.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let peer = stream.peer_addr().map_or(String::new(), |peer| peer.ip().to_canonical().to_string());
            let _ = (&stream).write_all(format!("{greeting} {peer}").as_bytes());
        }
    });
    let socket = place.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    let greeting = name.to_owned();
    thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(format!("{greeting} {}", peer.ip().to_canonical()).as_bytes(), peer);
        }
    });
}

/// Connects to a TCP server and returns its answer: the server's name and the client's address that it saw.
pub(crate) fn tcp(place: &impl Place, to: SocketAddr, timeout: Duration) -> std::io::Result<String> {
    place
        .run(|| {
            let mut stream = TcpStream::connect_timeout(&to, timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
        .unwrap()
}

/// Sends to a UDP server and returns its answer. Tries twice: the first packet may be lost during neighbour
/// resolution.
pub(crate) fn udp(place: &impl Place, to: SocketAddr, timeout: Duration) -> std::io::Result<String> {
    let socket = udp_socket(place, to);
    udp_ask(&socket, timeout)
}

pub(crate) fn udp_socket(place: &impl Place, to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv6() { [0; 16].into() } else { [0; 4].into() };
    place
        .run(|| {
            let socket = UdpSocket::bind((any, 0)).unwrap();
            socket.connect(to).unwrap();
            socket
        })
        .unwrap()
}

pub(crate) fn udp_ask(socket: &UdpSocket, timeout: Duration) -> std::io::Result<String> {
    socket.set_read_timeout(Some(timeout / 2))?;
    let mut buffer = [0; 64];
    let mut outcome = Err(std::io::ErrorKind::TimedOut.into());
    for _ in 0..2 {
        outcome = socket.send(b"?").and_then(|_| socket.recv(&mut buffer));
        if outcome.is_ok() {
            break;
        }
    }
    outcome.map(|len| String::from_utf8_lossy(&buffer[..len]).into_owned())
}

/// Asks a server with this protocol and returns its answer.
pub(crate) fn ask(place: &impl Place, proto: &str, to: SocketAddr) -> Result<String, String> {
    let answer = if proto == "tcp" { tcp(place, to, TIMEOUT) } else { udp(place, to, TIMEOUT) };
    answer.map_err(|error| format!("{proto} to {to}: {error}"))
}

/// Whether a request gets no answer: it is refused or times out.
pub(crate) fn silent(place: &impl Place, proto: &str, to: SocketAddr) -> bool {
    let answer = if proto == "tcp" { tcp(place, to, NO_ANSWER_WAIT) } else { udp(place, to, NO_ANSWER_WAIT) };
    answer.is_err()
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
        let output = world.call("ADD", &attachment, &config);
        assert!(output.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

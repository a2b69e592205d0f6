//! `ferrule repair` of running pods of containerd and podman, after each damage of a table.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cni_lab::testing::{Firewalld, NO_ANSWER_WAIT, link, serve, tcp};
use cni_lab::{Client, Containerd, Node, Place, Podman, Snapshot, TIMEOUT, bin_dir, eventually};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use self::leftovers::assert_nothing_left;

#[path = "common/leftovers.rs"]
mod leftovers;

/// Answers with a name and the client's address.
const PORT: u16 = 80;
/// Confirms each byte.
const ECHO: u16 = 81;
/// Confirms once it has received everything.
const SINK: u16 = 82;
/// The host ports of a pod are those of the container and this number.
const FIRST: u16 = 8000;
const SECOND: u16 = 9000;

/// Bits per second in each direction.
const RATE: u64 = 10_000_000;
const LIMITS: [(&str, &str); 2] =
    [("kubernetes.io/ingress-bandwidth", "10M"), ("kubernetes.io/egress-bandwidth", "10M")];
/// The bytes of an upload, and the time that it takes at least at that rate. The first 25 ms of the rate pass at once.
const UPLOAD: usize = 600_000;
const LIMITED: Duration = Duration::from_millis(400);

/// What works only with the damaged object.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// From outside to the host port.
    HostPort,
    /// To the outside, masqueraded.
    Outbound,
    /// From the pod through its own host port.
    Hairpin,
    /// The limit to the pod.
    Ingress,
    /// The limit from the pod.
    Egress,
    /// Only CHECK sees it.
    Unseen,
}
use Loss::{Egress, Hairpin, HostPort, Ingress, Outbound, Unseen};
const LOSSES: [Loss; 5] = [HostPort, Outbound, Hairpin, Ingress, Egress];

/// A script, what it breaks, and the plugins that are repaired. `BRIDGE`, `VETH` and `IFB` are links of the first pod;
/// `pod:` runs in the pod. `CLOSED` makes the chains `FORWARD` drop packets, as at the start.
type Damage = (&'static str, Loss, &'static str);

const LINKS: [Damage; 9] = [
    ("ip link set BRIDGE down", Outbound, "bridge"),
    ("ip address flush dev BRIDGE scope global", Outbound, "bridge"),
    ("ip link set VETH nomaster", HostPort, "bridge"),
    ("bridge link set dev VETH hairpin off", Hairpin, "bridge"),
    ("tc qdisc del dev VETH root", Ingress, "bandwidth"),
    ("tc qdisc del dev VETH ingress", Egress, "bandwidth"),
    ("ip link del IFB", Outbound, "bandwidth"),
    ("pod:sysctl -qw net.core.somaxconn=5", Unseen, "tuning"),
    ("sysctl -qw net.ipv4.ip_forward=0", HostPort, "bridge"),
];

const RULESET: [Damage; 2] = [
    ("nft flush ruleset; CLOSED", HostPort, "bridge firewall portmap"),
    ("nft -f /run/nftables.conf; CLOSED", Outbound, "bridge firewall portmap"),
];

const NFTABLES: [Damage; 4] = [
    ("iptables-nft -t nat -F; iptables-nft -F", Outbound, "firewall"),
    ("iptables-legacy -t nat -F; iptables-legacy -F", HostPort, "firewall"),
    ("nft delete table inet cni_plugins_masquerade", Outbound, "bridge"),
    ("nft delete table inet cni_portmap", HostPort, "portmap"),
];

const IPTABLES: [Damage; 3] = [
    ("iptables -t nat -F", HostPort, "bridge portmap"),
    ("iptables -F", Outbound, "firewall"),
    ("iptables -t nat -F; iptables -t nat -X; iptables -F; iptables -X", Outbound, "bridge firewall portmap"),
];

const RELOAD: [Damage; 2] =
    [("firewall-cmd --reload", Outbound, "firewall"), ("restart firewalld", Outbound, "firewall")];

/// The rules of Debian's nftables.service.
const SERVICE: &str = "flush ruleset
table inet filter {
    chain input { type filter hook input priority filter; }
    chain forward { type filter hook forward priority filter; }
    chain output { type filter hook output priority filter; }
}";

/// `backend` is that of `firewall`. Those of the other plugins are iptables too, or nftables.
fn network(backend: &str, limits: &Value) -> Value {
    let others = if backend == "iptables" { backend } else { "nftables" };
    let mut bandwidth = json!({"type": "bandwidth"});
    bandwidth.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
    json!({"name": "pods", "cniVersion": "0.4.0", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
            "ipMasq": true, "ipMasqBackend": others, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
        {"type": "portmap", "capabilities": {"portMappings": true}, "backend": others},
        {"type": "firewall", "backend": backend},
        bandwidth,
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "77"}}]})
}

enum Runtime<'n> {
    Containerd(Containerd<'n>),
    Podman(Podman<'n>),
}

impl<'n> Runtime<'n> {
    fn containerd(node: &'n Node, backend: &str) -> Runtime<'n> {
        let network = network(backend, &json!({"capabilities": {"bandwidth": true}}));
        let containerd = Containerd::start(node, &bin_dir().unwrap(), &network).unwrap();
        containerd.import_pause_image().unwrap();
        Runtime::Containerd(containerd)
    }

    /// podman has no limits, so the network has them.
    fn podman(node: &'n Node, backend: &str) -> Runtime<'n> {
        let burst = u32::MAX;
        let limits =
            json!({"ingressRate": RATE, "ingressBurst": burst, "egressRate": RATE, "egressBurst": burst});
        let podman = Podman::start(node, &bin_dir().unwrap(), Some(&network(backend, &limits))).unwrap();
        Runtime::Podman(podman)
    }

    /// Returns the ID and the path of the network namespace.
    fn run(&self, name: &str, ports: &[(u16, u16)]) -> anyhow::Result<(String, String)> {
        match self {
            Runtime::Containerd(containerd) => {
                let id = containerd.run_sandbox(name, ports, &LIMITS)?;
                let netns = containerd.sandbox_netns("pods", &id)?;
                Ok((id, netns))
            }
            Runtime::Podman(podman) => {
                let publish = ports.iter().map(|(host, container)| format!("--publish={host}:{container}"));
                let publish: Vec<String> = publish.collect();
                podman.run(name, &publish.iter().map(String::as_str).collect::<Vec<_>>())?;
                let format = "{{.Id}} {{.NetworkSettings.SandboxKey}}";
                let said = podman.podman(&["inspect", "--format", format, name])?;
                let (id, netns) = said.trim().split_once(' ').context("no namespace")?;
                Ok((id.to_owned(), netns.to_owned()))
            }
        }
    }

    fn remove(&self, id: &str) -> anyhow::Result<()> {
        match self {
            Runtime::Containerd(containerd) => {
                containerd.stop_sandbox(id)?;
                containerd.remove_sandbox(id)
            }
            Runtime::Podman(podman) => podman.podman(&["rm", "--force", "--time", "0", id]).map(drop),
        }
    }

    /// Runs `ferrule` in the runtime's namespaces. The error has what it said.
    fn ferrule(&self, words: &str) -> anyhow::Result<String> {
        let script = format!("/opt/cni/bin/ferrule {words} --bin-dir /opt/cni/bin --init 1 2>&1");
        match self {
            Runtime::Containerd(containerd) => containerd.sh_beside(&script),
            Runtime::Podman(podman) => podman.sh_beside(&script),
        }
    }
}

/// A pod's network namespace with the node's file system.
struct Inside<'n> {
    node: &'n Node,
    netns: String,
}

impl Place for Inside<'_> {
    fn enter(&self) -> anyhow::Result<()> {
        self.node.enter()?;
        let file = File::open(&self.netns).with_context(|| self.netns.clone())?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| self.netns.clone())
    }
}

struct Running<'n> {
    id: String,
    inside: Inside<'n>,
    /// The difference of its host ports to those of the container.
    offset: u16,
}

/// Answers in a thread until the test ends.
fn answer(place: &impl Place, port: u16, answer: fn(TcpStream) -> io::Result<()>) {
    let listener = place.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}

fn sink(mut stream: TcpStream) -> io::Result<()> {
    io::copy(&mut stream, &mut io::sink())?;
    stream.write_all(b"!")
}

fn connect(place: &impl Place, to: SocketAddr) -> TcpStream {
    let stream = place.run(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// How long it takes to send [`UPLOAD`] bytes.
fn upload(place: &impl Place, to: SocketAddr) -> Duration {
    let mut stream = connect(place, to);
    let start = Instant::now();
    stream.write_all(&vec![0; UPLOAD]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    start.elapsed()
}

/// Two pods on a node whose chains `FORWARD` drop packets, and open connections of the second pod.
struct Scene<'n> {
    node: &'n Node,
    outside: Client,
    runtime: Runtime<'n>,
    firewalld: Option<Firewalld>,
    /// Variants of iptables.
    variants: &'static [&'static str],
    before: Snapshot,
    pods: Vec<Running<'n>>,
    connections: Vec<TcpStream>,
}

impl<'n> Scene<'n> {
    fn new(
        node: &'n Node,
        runtime: Runtime<'n>,
        firewalld: Option<Firewalld>,
        variants: &'static [&'static str],
    ) -> Scene<'n> {
        let outside = node.outside_client("192.0.2.0/24").unwrap();
        // So that only masqueraded packets have an answer.
        outside.sh("ip route del default").unwrap();
        serve(&outside, "outside", PORT);
        answer(&outside, SINK, sink);
        node.write_file("/run/nftables.conf", SERVICE).unwrap();
        let mut scene = Scene {
            before: Snapshot::default(),
            pods: Vec::new(),
            connections: Vec::new(),
            node,
            outside,
            runtime,
            firewalld,
            variants,
        };
        scene.damage(if scene.firewalld.is_none() { "nft -f /run/nftables.conf; CLOSED" } else { "true" });
        // The first pod makes what all pods share.
        let (first, _) = scene.runtime.run("first", &[(FIRST, PORT)]).unwrap();
        scene.runtime.remove(&first).unwrap();
        scene.before = Snapshot::take(node).unwrap();
        for (name, offset) in [("one", FIRST), ("two", SECOND)] {
            let ports = [PORT, ECHO, SINK].map(|port| (offset + port, port));
            let (id, netns) = scene.runtime.run(name, &ports).unwrap();
            let inside = Inside { node, netns };
            serve(&inside, name, PORT);
            answer(&inside, ECHO, echo);
            answer(&inside, SINK, sink);
            scene.pods.push(Running { id, inside, offset });
        }
        answer(node, ECHO, echo);
        let host_port = scene.host_port(SECOND + ECHO);
        scene.connections.push(connect(&scene.outside, host_port));
        scene.connections.push(connect(&scene.pods[1].inside, "10.1.0.1:81".parse().unwrap()));
        scene.assert_sound(&LOSSES, "ADD");
        scene
    }

    fn host_port(&self, port: u16) -> SocketAddr {
        (self.outside.node_address(), port).into()
    }

    fn damage(&mut self, script: &str) {
        if let (Some(firewalld), "restart firewalld") = (&mut self.firewalld, script) {
            return firewalld.restart_daemon();
        }
        if let Some(script) = script.strip_prefix("pod:") {
            self.pods[0].inside.sh(script).unwrap();
            return;
        }
        let close = |variant| format!("iptables-{variant} -P FORWARD DROP");
        let closed: Vec<String> = self.variants.iter().map(close).collect();
        let mut script = script.replace("CLOSED", &closed.join("; ")).replace("BRIDGE", "cni0");
        if script.contains("VETH") || script.contains("IFB") {
            let (veth, ifb) = self.links();
            script = script.replace("VETH", &veth).replace("IFB", &ifb);
        }
        self.node.sh(&format!("set -e; {script}")).unwrap();
    }

    /// The host's end of the first pod's link, and its IFB.
    fn links(&self) -> (String, String) {
        let index = link(&self.pods[0].inside, "eth0")["link_index"].clone();
        let links: Vec<Value> = serde_json::from_str(&self.node.sh("ip -j link").unwrap()).unwrap();
        let veth = links.iter().find(|link| link["ifindex"] == index).unwrap()["ifname"].as_str().unwrap();
        let filters = self.node.sh(&format!("tc filter show dev {veth} ingress")).unwrap();
        let ifb = filters.split("Egress Redirect to device ").nth(1).unwrap();
        (veth.to_owned(), ifb.split([' ', ')']).next().unwrap().to_owned())
    }

    /// Whether the pod's traffic shows no loss of this kind. A limit can be there only if the upload lasts; a slow upload may
    /// have another reason.
    fn works(&self, pod: &Running<'_>, loss: Loss, timeout: Duration) -> bool {
        let (client, node) = (self.outside.address(), self.outside.node_address());
        let of = |place: &dyn Fn() -> io::Result<String>, said: String| place().is_ok_and(|it| it == said);
        let name = if pod.offset == FIRST { "one" } else { "two" };
        let port = self.host_port(pod.offset + PORT);
        let from = |address: IpAddr| format!("{name} {address}");
        match loss {
            HostPort => of(&|| tcp(&self.outside, port, timeout), from(client)),
            Outbound => of(&|| tcp(&pod.inside, (client, PORT).into(), timeout), format!("outside {node}")),
            Hairpin => of(&|| tcp(&pod.inside, port, timeout), from("10.1.0.1".parse().unwrap())),
            Ingress => upload(&self.outside, self.host_port(pod.offset + SINK)) >= LIMITED,
            Egress => upload(&pod.inside, (client, SINK).into()) >= LIMITED,
            Unseen => true,
        }
    }

    #[track_caller]
    fn assert_sound(&self, losses: &[Loss], what: &str) {
        for pod in &self.pods {
            for loss in losses {
                assert!(self.works(pod, *loss, TIMEOUT), "{what}: {loss:?} of {}", pod.id);
            }
        }
        let said = self.runtime.ferrule("check").unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(said.ends_with("2 sound, 0 failed, 0 skipped\n"), "{what}: {said}");
        for mut stream in &self.connections {
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }

    #[track_caller]
    fn mends(&mut self, (damage, loss, plugins): Damage) {
        let start = Instant::now();
        self.damage(damage);
        if loss != Unseen {
            let is_lost = || !self.works(&self.pods[0], loss, NO_ANSWER_WAIT);
            assert!(eventually(TIMEOUT, is_lost), "{damage}: {loss:?}");
        }
        assert!(self.runtime.ferrule("check").is_err(), "{damage}");
        let said = self.runtime.ferrule("repair --yes").unwrap_or_else(|error| panic!("{damage}: {error}"));
        assert!(said.contains(" repaired, 0 failed, 0 skipped, "), "{damage}: {said}");
        let repaired = said.lines().filter_map(|line| line.strip_prefix("repaired ")?.split(' ').next());
        assert_eq!(repaired.collect::<BTreeSet<_>>(), plugins.split(' ').collect(), "{damage}: {said}");
        let is_own = ["VETH", "IFB", "pod:"].iter().any(|own| damage.contains(own));
        assert!(!is_own || !said.contains(&self.pods[1].id), "{damage}: {said}");
        // Uploads take their time.
        self.assert_sound(if plugins == "bandwidth" { &LOSSES } else { &LOSSES[..3] }, damage);
        println!("{damage}: {:?}\n{said}", start.elapsed());
    }

    fn end(self) {
        for pod in &self.pods {
            self.runtime.remove(&pod.id).unwrap();
        }
        drop(self.connections);
        assert_nothing_left(self.node, &self.before, &["cni0"], &[]).unwrap();
    }
}

#[test]
fn containerd_with_nftables() {
    let node = Node::new().unwrap();
    let runtime = Runtime::containerd(&node, "nftables");
    let mut scene = Scene::new(&node, runtime, None, &["nft", "legacy"]);
    for damage in LINKS.into_iter().chain(RULESET).chain(NFTABLES) {
        scene.mends(damage);
    }
    scene.end();
}

#[test]
fn containerd_with_firewalld() {
    let node = Node::new().unwrap();
    let firewalld = Firewalld::start(&node);
    let mut scene = Scene::new(&node, Runtime::containerd(&node, ""), Some(firewalld), &[]);
    for damage in RELOAD {
        scene.mends(damage);
    }
    scene.end();
}

#[test]
fn podman_with_iptables_nft() {
    let node = Node::new().unwrap();
    let mut scene = Scene::new(&node, Runtime::podman(&node, "iptables"), None, &["nft"]);
    for damage in LINKS.into_iter().chain(RULESET).chain(IPTABLES) {
        scene.mends(damage);
    }
    scene.end();
}

#[test]
fn podman_with_iptables_legacy() {
    let node = Node::new().unwrap();
    let runtime = Runtime::podman(&node, "iptables");
    // In the node's own /etc.
    node.sh("set -e; [ \"$(stat -f -c %T /etc)\" = overlayfs ]
        for name in iptables ip6tables; do for suffix in '' -save -restore; do
            ln -sf /usr/sbin/$name-legacy$suffix /etc/alternatives/$name$suffix
        done; done")
        .unwrap();
    let mut scene = Scene::new(&node, runtime, None, &["legacy"]);
    for damage in IPTABLES {
        scene.mends(damage);
    }
    scene.end();
}

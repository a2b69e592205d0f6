//! Two running pods, their damage and their repair.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use cni_lab::testing::{Firewalld, NO_ANSWER_WAIT, link, serve, tcp};
use cni_lab::{Client, Node, Place as _, Snapshot, TIMEOUT, eventually};
use serde_json::Value;

use crate::leftovers::assert_nothing_left;
use crate::runtime::Runtime;
use crate::traffic::{Inside, LIMITED, answer, connect, echo, sink, upload};

/// Answers with a name and the client's address.
const PORT: u16 = 80;
/// Confirms each byte.
const ECHO: u16 = 81;
/// Confirms once it has received everything.
const SINK: u16 = 82;
/// The host ports of a pod are those of the container and this number.
const FIRST: u16 = 8000;
const SECOND: u16 = 9000;

/// What works only with the damaged object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loss {
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
/// Those that traffic shows.
pub(crate) const LOSSES: [Loss; 5] =
    [Loss::HostPort, Loss::Outbound, Loss::Hairpin, Loss::Ingress, Loss::Egress];

/// A script, the traffic that it breaks, and the plugins that are repaired. `BRIDGE`, `VETH` and `IFB` are links of the first pod;
/// `pod:` runs in the pod. `CLOSED` makes the chains `FORWARD` drop packets, as at the start.
pub(crate) type Damage = (&'static str, Loss, &'static str);

struct Running<'n> {
    id: String,
    inside: Inside<'n>,
    /// The difference of its host ports to those of the container.
    offset: u16,
}

/// Two pods on a node whose chains `FORWARD` drop packets, and open connections of the second pod.
pub(crate) struct Scene<'n> {
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
    pub(crate) fn new(
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
        scene.damage("CLOSED");
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
            Loss::HostPort => of(&|| tcp(&self.outside, port, timeout), from(client)),
            Loss::Outbound => {
                of(&|| tcp(&pod.inside, (client, PORT).into(), timeout), format!("outside {node}"))
            }
            Loss::Hairpin => of(&|| tcp(&pod.inside, port, timeout), from("10.1.0.1".parse().unwrap())),
            Loss::Ingress => upload(&self.outside, self.host_port(pod.offset + SINK)) >= LIMITED,
            Loss::Egress => upload(&pod.inside, (client, SINK).into()) >= LIMITED,
            Loss::Unseen => true,
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
    pub(crate) fn mends(&mut self, (damage, loss, plugins): Damage) {
        let start = Instant::now();
        self.damage(damage);
        if loss != Loss::Unseen {
            let is_lost = || !self.works(&self.pods[0], loss, NO_ANSWER_WAIT);
            assert!(eventually(TIMEOUT, is_lost), "{damage}: {loss:?}");
        }
        assert!(self.runtime.ferrule("check").is_err(), "{damage}");
        let said = self.runtime.ferrule("repair --yes").unwrap_or_else(|error| panic!("{damage}: {error}"));
        assert!(said.contains(" repaired, 0 failed, 0 skipped, "), "{damage}: {said}");
        let repaired = said.lines().filter_map(|line| line.strip_prefix("repaired ")?.split(' ').next());
        assert_eq!(repaired.collect::<BTreeSet<_>>(), plugins.split(' ').collect(), "{damage}: {said}");
        let is_own =
            ["VETH", "IFB", "pod:"].iter().any(|own| damage.contains(own)) && !damage.contains("BRIDGE");
        assert!(!is_own || !said.contains(&self.pods[1].id), "{damage}: {said}");
        // Uploads take their time.
        self.assert_sound(if plugins.contains("bandwidth") { &LOSSES } else { &LOSSES[..3] }, damage);
        println!("{damage}: {:?}\n{said}", start.elapsed());
    }

    pub(crate) fn end(self) {
        for pod in &self.pods {
            self.runtime.remove(&pod.id).unwrap();
        }
        drop(self.connections);
        assert_nothing_left(self.node, &self.before, &["cni0"], &[]).unwrap();
    }
}

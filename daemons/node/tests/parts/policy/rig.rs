//! A node with the plugin `policy` and the thread that enforces, objects of the API, and those who try to get through.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use cni_lab::testing::{Origin, PluginDir, World, ask, ips_of, serve, silent, udp_ask, udp_socket};
use cni_lab::{Place, Pod, TIMEOUT, eventually};
use cni_runner::{Attachment, Network};
use ferrule_node::policy::objects::{Key, Kind, Names, Told, channel};
use ferrule_node::policy::questions::Question;
use ferrule_node::policy::{Handle, How, Report, spawn};
use ferrule_node_policy::model;
use ferrule_node_policy::model::{NetworkPolicy, Peer, Port, PortValue};
use ferrule_node_policy::ruleset::Entry;
use ferrule_policy_kit::isolated::PATH;
use serde_json::json;
use tokio::sync::{mpsc, watch};

/// No answer within this time is none.
pub(crate) const MOMENT: Duration = Duration::from_millis(200);

pub(crate) struct Rig {
    pub(crate) world: World,
    network: Network,
    daemon: RefCell<Option<(mpsc::Sender<Told>, Handle)>>,
    /// The health endpoint's addresses.
    pub(crate) endpoint: watch::Sender<BTreeSet<Entry>>,
}

/// A started pod.
pub(crate) struct Started {
    pub(crate) pod: Pod,
    attachment: Attachment,
    pub(crate) addresses: [IpAddr; 2],
}

pub(crate) fn labels(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

pub(crate) fn selects(list: &[(&str, &str)]) -> model::LabelSelector {
    model::LabelSelector { labels: labels(list), ..Default::default() }
}

pub(crate) fn pods(list: &[(&str, &str)]) -> Peer {
    Peer { pods: Some(selects(list)), ..Peer::default() }
}

pub(crate) fn block(cidr: &str, except: &[&str]) -> Peer {
    let except = except.iter().map(|one| one.to_string()).collect();
    Peer { block: Some(model::IpBlock { cidr: cidr.to_owned(), except }), ..Peer::default() }
}

pub(crate) fn port(protocol: &str, port: PortValue, end_port: Option<i32>) -> Port {
    Port { protocol: Some(protocol.to_owned()), port: Some(port), end_port, ..Port::default() }
}

pub(crate) fn number(protocol: &str, number: i32) -> Port {
    port(protocol, PortValue::Number(number), None)
}

pub(crate) fn policy(namespace: &str, name: &str, app: &str) -> NetworkPolicy {
    let (namespace, name, pods) = (namespace.to_owned(), name.to_owned(), selects(&[("app", app)]));
    NetworkPolicy { namespace, name, pods, ..NetworkPolicy::default() }
}

/// A pod of this node, of which the API does not know the address yet. Its name, UID and label are one word.
pub(crate) fn object(namespace: &str, app: &str) -> model::Pod {
    model::Pod {
        namespace: namespace.to_owned(),
        name: app.to_owned(),
        uid: app.to_owned(),
        labels: labels(&[("app", app)]),
        ports: vec![model::NamedPort { name: "web".into(), protocol: model::Protocol::Tcp, port: 82 }],
        local: true,
        ..model::Pod::default()
    }
}

/// The object of a started pod, with the addresses that the kubelet has reported.
pub(crate) fn known(namespace: &str, started: &Started) -> model::Pod {
    with_addresses(object(namespace, started.pod.name()), started.addresses)
}

/// The same, and the API knows its addresses.
pub(crate) fn with_addresses(mut pod: model::Pod, addresses: [IpAddr; 2]) -> model::Pod {
    for address in addresses {
        match address {
            IpAddr::V4(v4) => pod.addresses.v4 = Some(v4),
            IpAddr::V6(v6) => pod.addresses.v6 = Some(v6),
        }
    }
    pod
}

pub(crate) fn key(namespace: &str, name: &str) -> Key {
    Key { namespace: namespace.into(), name: name.into() }
}

impl Rig {
    pub(crate) fn new() -> Rig {
        let plugins = PluginDir::installed(Origin::Ours, "policy").with(Origin::Ours, &["ptp", "host-local"]);
        let range = |subnet: &str| json!([{ "subnet": subnet }]);
        let ptp = json!({"type": "ptp", "ipam": {"type": "host-local",
            "ranges": [range("10.1.0.0/24"), range("fd00:1::/64")],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}});
        let list = json!({"name": "pods", "cniVersion": "1.1.0", "plugins": [ptp, {"type": "policy"}]});
        Rig {
            world: World::new(plugins),
            network: Network::from_value(&list).unwrap(),
            daemon: RefCell::default(),
            endpoint: watch::Sender::default(),
        }
    }

    pub(crate) fn start_daemon(&self) {
        self.start_daemon_with(false);
    }

    pub(crate) fn start_daemon_with(&self, is_dry: bool) {
        let (sender, receiver) = channel();
        let endpoint = self.endpoint.subscribe();
        let how = How { path: PATH.into(), is_dry, logs: true };
        let handle = self.world.node.run(|| spawn(how, receiver, endpoint)).unwrap().unwrap();
        self.daemon.replace(Some((sender, handle)));
    }

    pub(crate) fn questions(&self) -> mpsc::Sender<Question> {
        self.daemon.borrow().as_ref().unwrap().1.questions.clone()
    }

    pub(crate) fn stop_daemon(&self) {
        let (sender, handle) = self.daemon.take().unwrap();
        drop(sender);
        handle.join();
    }

    pub(crate) fn tell(&self, told: impl IntoIterator<Item = Told>) {
        let sender = self.daemon.borrow().as_ref().unwrap().0.clone();
        told.into_iter().for_each(|told| sender.blocking_send(told).unwrap());
    }

    /// The lists end with these objects.
    pub(crate) fn listed(&self, namespaces: &[&str], policies: &[NetworkPolicy], pods: &[model::Pod]) {
        self.tell(Rig::lists(namespaces, policies, pods));
    }

    /// The messages of lists that end with these objects.
    pub(crate) fn lists(namespaces: &[&str], policies: &[NetworkPolicy], pods: &[model::Pod]) -> Vec<Told> {
        let mut names = Kind::ALL.map(|_| Names::default());
        let [of_policies, _, of_namespaces, of_pods] = &mut names;
        namespaces.iter().for_each(|name| of_namespaces.insert(name, name));
        policies.iter().for_each(|one| of_policies.insert(&one.namespace, &one.name));
        pods.iter().for_each(|one| of_pods.insert(&one.namespace, &one.name));
        let namespace = |name: &&str| {
            Told::Namespace(model::Namespace {
                name: name.to_string(),
                labels: labels(&[("kubernetes.io/metadata.name", name)]),
                mode: None,
            })
        };
        let mut all: Vec<Told> = namespaces.iter().map(namespace).collect();
        all.extend(policies.iter().cloned().map(Told::Policy));
        all.extend(pods.iter().cloned().map(Told::Pod));
        all.extend(Kind::ALL.into_iter().zip(names).map(|(kind, names)| Told::Listed(kind, names)));
        all
    }

    pub(crate) fn report(&self) -> Report {
        self.daemon.borrow().as_ref().unwrap().1.report.borrow().clone()
    }

    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Report) -> bool) {
        assert!(eventually(TIMEOUT, || is_so(&self.report())), "{what}: {:?}", self.report());
    }

    /// Waits until the messages so far have been handled.
    pub(crate) fn settle(&self) {
        let sender = self.daemon.borrow().as_ref().unwrap().0.clone();
        assert!(eventually(TIMEOUT, || sender.capacity() == sender.max_capacity()));
        // The thread takes the messages before it acts on them.
        let marker = "marker".to_owned();
        let policy = NetworkPolicy { types: vec!["Egress".into()], ..policy("settled", &marker, "nobody") };
        self.tell([Told::Policy(policy)]);
        assert!(eventually(TIMEOUT, || self.isolated().contains("\nsettled ")));
        self.tell([Told::Gone(Kind::Policies, key("settled", &marker))]);
        assert!(eventually(TIMEOUT, || !self.isolated().contains("settled")));
    }

    /// The file that ADD reads.
    pub(crate) fn isolated(&self) -> String {
        self.world.node.sh(&format!("cat {PATH}")).unwrap_or_default()
    }

    pub(crate) fn wait_isolated(&self, text: &str) {
        assert!(eventually(TIMEOUT, || self.isolated() == text), "{:?}, not {text:?}", self.isolated());
    }

    /// ADD of a pod whose name and UID are `app`, with servers at the ports 80 to 83.
    pub(crate) fn add(&self, namespace: &str, app: &str) -> Started {
        let pod = self.world.pod(app);
        pod.sh("ip link set lo up").unwrap();
        let args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={app};K8S_POD_UID={app}");
        let attachment = pod.attachment("eth0").with_args(args);
        let result = self.world.runtime().add(&self.network, &attachment).unwrap();
        let addresses: Vec<IpAddr> = ips_of(&result).iter().map(|ip| ip.parse().unwrap()).collect();
        (80..=83).for_each(|port| serve(&pod, app, port));
        Started { pod, attachment, addresses: addresses.try_into().unwrap() }
    }

    pub(crate) fn del(&self, started: &Started) {
        self.world.runtime().del(&self.network, &started.attachment).unwrap();
    }

    pub(crate) fn undecided(&self) -> Vec<String> {
        self.report().undecided
    }

    pub(crate) fn elements(&self, table: &str) -> usize {
        let listing = self.world.nft_table(table);
        listing.lines().filter(|line| line.contains("comment \"") && line.contains('/')).count()
    }
}

/// Whether a try from a place has this outcome: the protocol, the destination, and whether an answer must come.
pub(crate) type End<'a> = &'a (dyn Fn(&str, SocketAddr, bool) -> bool + Sync);

/// From where, the protocol, the addresses and the port, and whether an answer must come.
pub(crate) type Try<'a> = (End<'a>, &'a str, [IpAddr; 2], u16, bool);

/// All of the tries at the same time, in both families.
pub(crate) fn try_all(round: &str, tries: &[Try<'_>]) {
    let wrong: Vec<String> = thread::scope(|scope| {
        let runs: Vec<_> = tries
            .iter()
            .enumerate()
            .flat_map(|(number, one)| [(number, one, 0), (number, one, 1)])
            .map(|(number, (from, proto, to, port, passes), family)| {
                let to = SocketAddr::new(to[family], *port);
                scope.spawn(move || {
                    (!from(proto, to, *passes))
                        .then(|| format!("try {number}: {proto} to {to}, not {passes}"))
                })
            })
            .collect();
        runs.into_iter().filter_map(|run| run.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{round}: {wrong:#?}");
}

/// Whether the place gets the answer, or none, as expected.
pub(crate) fn from<P: Place + Sync>(place: &P) -> impl Fn(&str, SocketAddr, bool) -> bool + Sync {
    move |proto, to, passes| {
        if passes { ask(place, proto, to).is_ok() } else { silent(place, proto, to) }
    }
}

/// A conversation whose ends do not begin anew.
pub(crate) enum Talk {
    Udp(UdpSocket),
    Tcp(TcpStream, TcpStream),
    /// The server sends on its own, too.
    Both(UdpSocket, UdpSocket),
}

impl Talk {
    pub(crate) fn udp(from: &impl Place, to: SocketAddr) -> Talk {
        Talk::Udp(udp_socket(from, to))
    }

    pub(crate) fn tcp(from: &impl Place, at: &impl Place, to: SocketAddr) -> Talk {
        let listener = at.run(|| TcpListener::bind(to)).unwrap().unwrap();
        let client = from.run(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap().unwrap();
        Talk::Tcp(client, listener.accept().unwrap().0)
    }

    pub(crate) fn both(from: &impl Place, at: &impl Place, to: SocketAddr) -> Talk {
        let server = at.run(|| UdpSocket::bind(to)).unwrap().unwrap();
        let client = udp_socket(from, to);
        client.send(b"x").unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (_, peer) = server.recv_from(&mut [0; 64]).unwrap();
        server.connect(peer).unwrap();
        Talk::Both(client, server)
    }

    pub(crate) fn is_udp(&self) -> bool {
        !matches!(self, Talk::Tcp(..))
    }

    /// Whether something comes from the client to the server and back, within a moment.
    pub(crate) fn goes(&self) -> bool {
        match self {
            Talk::Udp(socket) => {
                socket.set_nonblocking(true).unwrap();
                while socket.recv(&mut [0; 64]).is_ok() {}
                socket.set_nonblocking(false).unwrap();
                udp_ask(socket, MOMENT).is_ok()
            }
            Talk::Both(client, server) => {
                let passes = |from: &UdpSocket, to: &UdpSocket| {
                    to.set_read_timeout(Some(MOMENT)).unwrap();
                    from.send(b"x").is_ok() && to.recv(&mut [0; 64]).is_ok()
                };
                // Without the other end's packet, that of the server would begin a flow in the allowed direction.
                passes(server, client) || passes(client, server)
            }
            Talk::Tcp(client, server) => {
                let passes = |mut from: &TcpStream, mut to: &TcpStream| {
                    from.write_all(b"x").is_ok()
                        && to.set_read_timeout(Some(MOMENT)).is_ok()
                        && to.read(&mut [0; 64]).is_ok_and(|len| len > 0)
                };
                passes(server, client) || passes(client, server)
            }
        }
    }
}

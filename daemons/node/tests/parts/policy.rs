//! The thread that enforces NetworkPolicies, with the plugin `policy` and hand-made objects of the API.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::testing::{Origin, PluginDir, World, ask, ips_of, serve, silent, udp_ask, udp_socket};
use cni_lab::{Place, Pod, TIMEOUT, eventually};
use cni_runner::{Attachment, Network};
use ferrule_node::policy::objects::{Key, Kind, Names, Told, channel};
use ferrule_node::policy::{Handle, Report, cleanup, spawn, stand_down};
use ferrule_node_policy::model;
use ferrule_node_policy::model::{NetworkPolicy, Peer, Port, PortValue, Rule};
use ferrule_policy_kit::isolated::PATH;
use serde_json::json;
use tokio::sync::mpsc;

/// A change holds within this time.
const SOON: Duration = Duration::from_secs(1);
/// No answer within this time is none.
const MOMENT: Duration = Duration::from_millis(200);

struct Rig {
    world: World,
    network: Network,
    daemon: RefCell<Option<(mpsc::Sender<Told>, Handle)>>,
}

/// A started pod.
struct Started {
    pod: Pod,
    attachment: Attachment,
    addresses: [IpAddr; 2],
}

fn labels(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn selects(list: &[(&str, &str)]) -> model::LabelSelector {
    model::LabelSelector { labels: labels(list), ..Default::default() }
}

fn pods(list: &[(&str, &str)]) -> Peer {
    Peer { pods: Some(selects(list)), ..Peer::default() }
}

fn block(cidr: &str, except: &[&str]) -> Peer {
    let except = except.iter().map(|one| one.to_string()).collect();
    Peer { block: Some(model::IpBlock { cidr: cidr.to_owned(), except }), ..Peer::default() }
}

fn port(protocol: &str, port: PortValue, end_port: Option<i32>) -> Port {
    Port { protocol: Some(protocol.to_owned()), port: Some(port), end_port, ..Port::default() }
}

fn number(protocol: &str, number: i32) -> Port {
    port(protocol, PortValue::Number(number), None)
}

fn policy(namespace: &str, name: &str, app: &str) -> NetworkPolicy {
    let (namespace, name, pods) = (namespace.to_owned(), name.to_owned(), selects(&[("app", app)]));
    NetworkPolicy { namespace, name, pods, ..NetworkPolicy::default() }
}

/// A pod of this node, of which the API does not know the address yet. Its name, UID and label are one word.
fn object(namespace: &str, app: &str) -> model::Pod {
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

fn key(namespace: &str, name: &str) -> Key {
    Key { namespace: namespace.into(), name: name.into() }
}

impl Rig {
    fn new() -> Rig {
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
        }
    }

    fn start_daemon(&self) {
        let (sender, receiver) = channel();
        let handle = self.world.node.run(|| spawn(PATH.into(), receiver)).unwrap().unwrap();
        self.daemon.replace(Some((sender, handle)));
    }

    fn stop_daemon(&self) {
        let (sender, handle) = self.daemon.take().unwrap();
        drop(sender);
        handle.join();
    }

    fn tell(&self, told: impl IntoIterator<Item = Told>) {
        let sender = self.daemon.borrow().as_ref().unwrap().0.clone();
        told.into_iter().for_each(|told| sender.blocking_send(told).unwrap());
    }

    /// The lists end with these objects.
    fn listed(&self, namespaces: &[&str], policies: &[NetworkPolicy], pods: &[model::Pod]) {
        let mut names = [Names::default(), Names::default(), Names::default()];
        let [of_policies, of_namespaces, of_pods] = &mut names;
        namespaces.iter().for_each(|name| of_namespaces.insert(name, name));
        policies.iter().for_each(|one| of_policies.insert(&one.namespace, &one.name));
        pods.iter().for_each(|one| of_pods.insert(&one.namespace, &one.name));
        let namespace = |name: &&str| {
            Told::Namespace(model::Namespace {
                name: name.to_string(),
                labels: labels(&[("kubernetes.io/metadata.name", name)]),
            })
        };
        self.tell(namespaces.iter().map(namespace));
        self.tell(policies.iter().cloned().map(Told::Policy));
        self.tell(pods.iter().cloned().map(Told::Pod));
        self.tell(Kind::ALL.into_iter().zip(names).map(|(kind, names)| Told::Listed(kind, names)));
    }

    fn report(&self) -> Report {
        self.daemon.borrow().as_ref().unwrap().1.report.borrow().clone()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Report) -> bool) {
        assert!(eventually(TIMEOUT, || is_so(&self.report())), "{what}: {:?}", self.report());
    }

    /// Waits until the messages so far have been handled.
    fn settle(&self) {
        let sender = self.daemon.borrow().as_ref().unwrap().0.clone();
        assert!(eventually(TIMEOUT, || sender.capacity() == sender.max_capacity()));
        // The thread takes the messages before it acts on them.
        let marker = "marker".to_owned();
        let policy = NetworkPolicy { types: vec!["Egress".into()], ..policy("settled", &marker, "nobody") };
        self.tell([Told::Policy(policy)]);
        assert!(eventually(TIMEOUT, || self.isolated().contains("\nsettled egress\n")));
        self.tell([Told::Gone(Kind::Policies, key("settled", &marker))]);
        assert!(eventually(TIMEOUT, || !self.isolated().contains("settled")));
    }

    /// The file that ADD reads.
    fn isolated(&self) -> String {
        self.world.node.sh(&format!("cat {PATH}")).unwrap_or_default()
    }

    fn wait_isolated(&self, text: &str) {
        assert!(eventually(TIMEOUT, || self.isolated() == text), "{:?}, not {text:?}", self.isolated());
    }

    /// ADD of a pod whose name and UID are `app`, with servers at the ports 80 to 83.
    fn add(&self, namespace: &str, app: &str) -> Started {
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

    fn del(&self, started: &Started) {
        self.world.runtime().del(&self.network, &started.attachment).unwrap();
    }

    fn undecided(&self) -> Vec<String> {
        self.report().undecided
    }

    fn elements(&self, table: &str) -> usize {
        let listing = self.world.nft_table(table);
        listing.lines().filter(|line| line.contains("comment \"") && line.contains('/')).count()
    }
}

/// Whether a try from a place has this outcome: the protocol, the destination, and whether an answer must come.
type End<'a> = &'a (dyn Fn(&str, SocketAddr, bool) -> bool + Sync);

/// All of the tries at the same time, in both families.
fn try_all(round: &str, tries: &[(End<'_>, &str, [IpAddr; 2], u16, bool)]) {
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
fn from<P: Place + Sync>(place: &P) -> impl Fn(&str, SocketAddr, bool) -> bool + Sync {
    move |proto, to, passes| {
        if passes { ask(place, proto, to).is_ok() } else { silent(place, proto, to) }
    }
}

#[test]
fn policies_hold_from_the_announcement_on() {
    let rig = Rig::new();
    rig.start_daemon();
    rig.wait("not known yet", |report| report.unknown.is_some());
    // Without the API nothing is known, so every pod waits.
    let client = rig.add("shop", "client");
    assert!(
        eventually(TIMEOUT, || rig.elements("ferrule_policy") == 5),
        "{}",
        rig.world.nft_table("ferrule_policy")
    );
    let first = NetworkPolicy {
        ingress: vec![Rule {
            peers: vec![pods(&[("app", "client")])],
            ports: vec![number("TCP", 80), port("TCP", PortValue::Number(90), Some(91)), number("UDP", 81)],
        }],
        ..policy("shop", "web", "web")
    };
    rig.listed(&["shop", "tools"], &[first.clone()], &[object("shop", "client")]);
    rig.wait_isolated("ferrule-policy 1\nshop ingress\nend\n");
    rig.wait("the client is released", |report| report.waiting == 0 && report.is_good());
    assert_eq!((rig.elements("ferrule_pods"), rig.elements("ferrule_policy")), (0, 0));

    // Before the API knows the pod it waits; then its address is known from the announcement.
    let web = rig.add("shop", "web");
    let other = rig.add("tools", "other");
    assert_eq!(rig.undecided(), ["web shop/web"]);
    let (node, outside) = (&rig.world.node, &rig.world.outside);
    let from_outside = |proto: &str, to: SocketAddr, passes: bool| {
        from(&outside[usize::from(to.is_ipv6())])(proto, to, passes)
    };
    let (client_end, other_end, node_end) = (from(&client.pod), from(&other.pod), from(node));
    let w = web.addresses;
    try_all("undecided", &[(&node_end, "tcp", w, 80, true), (&client_end, "tcp", w, 80, false)]);
    rig.tell([Told::Pod(object("shop", "web")), Told::Pod(object("tools", "other"))]);
    rig.wait("released", |report| report.waiting == 0 && report.isolated == 2);
    try_all(
        "decided",
        &[
            (&client_end, "tcp", w, 80, true),
            (&client_end, "udp", w, 81, true),
            (&client_end, "tcp", w, 81, false),
            (&client_end, "udp", w, 80, false),
            (&other_end, "tcp", w, 80, false),
            (&from_outside, "udp", w, 81, false),
            (&node_end, "tcp", w, 83, true),
            (&other_end, "tcp", client.addresses, 80, true),
            (&from(&web.pod), "tcp", client.addresses, 80, true),
        ],
    );

    // A change ends what it denies, TCP and UDP, and nothing else.
    let kept = [client.addresses, client.addresses];
    let (mut ended, mut others) = (Vec::new(), Vec::new());
    for family in [0, 1] {
        let to = |addresses: [IpAddr; 2], port| SocketAddr::new(addresses[family], port);
        ended.push(Talk::udp(&client.pod, to(w, 81)));
        ended.push(Talk::tcp(&client.pod, &web.pod, to(w, 80 + 10 + family as u16)));
        others.push(Talk::udp(node, to(w, 81)));
        others.push(Talk::udp(&other.pod, to(kept[0], 80)));
    }
    assert!(ended.iter().chain(&others).all(Talk::goes), "before the change");
    let open = NetworkPolicy {
        ingress: vec![Rule { peers: vec![pods(&[("app", "client")])], ports: Vec::new() }],
        ..policy("shop", "web", "web")
    };
    let closed = policy("shop", "web", "web");
    for round in 0..2 {
        rig.tell([Told::Policy(closed.clone())]);
        let began = Instant::now();
        let are_ended = eventually(TIMEOUT, || ended.iter().all(|talk| !talk.goes()));
        assert!(are_ended && began.elapsed() < SOON + TIMEOUT / 8, "round {round}: {:?}", began.elapsed());
        assert!(others.iter().all(Talk::goes), "round {round}: others ended");
        // They stay ended while somebody sends.
        thread::sleep(Duration::from_millis(200));
        assert!(ended.iter().all(|talk| !talk.goes()), "round {round}: came back");
        rig.tell([Told::Policy(open.clone())]);
        let udp: Vec<_> = ended.iter().filter(|talk| talk.is_udp()).collect();
        assert!(eventually(TIMEOUT, || udp.iter().all(|talk| talk.goes())), "round {round}: allowed again");
    }
}

/// A conversation whose ends do not begin anew.
enum Talk {
    Udp(UdpSocket),
    Tcp(TcpStream, TcpStream),
}

impl Talk {
    fn udp(from: &impl Place, to: SocketAddr) -> Talk {
        Talk::Udp(udp_socket(from, to))
    }

    fn tcp(from: &impl Place, at: &impl Place, to: SocketAddr) -> Talk {
        let listener = at.run(|| TcpListener::bind(to)).unwrap().unwrap();
        let client = from.run(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap().unwrap();
        Talk::Tcp(client, listener.accept().unwrap().0)
    }

    fn is_udp(&self) -> bool {
        matches!(self, Talk::Udp(_))
    }

    /// Whether something comes from the client to the server and back, within a moment.
    fn goes(&self) -> bool {
        match self {
            Talk::Udp(socket) => {
                socket.set_nonblocking(true).unwrap();
                while socket.recv(&mut [0; 64]).is_ok() {}
                socket.set_nonblocking(false).unwrap();
                udp_ask(socket, MOMENT).is_ok()
            }
            Talk::Tcp(client, server) => {
                let passes = |mut from: &TcpStream, mut to: &TcpStream| {
                    from.write_all(b"x").is_ok()
                        && to.set_read_timeout(Some(MOMENT)).is_ok()
                        && to.read(&mut [0; 64]).is_ok_and(|len| len > 0)
                };
                passes(client, server) && passes(server, client)
            }
        }
    }
}

#[test]
fn egress_the_end_of_pods_and_restarts() {
    let rig = Rig::new();
    rig.start_daemon();
    let outside = rig.world.outside.each_ref().map(|client| client.address());
    let except = outside.map(|address| match address {
        IpAddr::V4(_) => block("192.0.2.0/24", &[&format!("{address}/32")]),
        IpAddr::V6(_) => block("2001:db8::/64", &[&format!("{address}/128")]),
    });
    let egress = |peers: Vec<Peer>, ports: Vec<Port>| NetworkPolicy {
        types: vec!["Egress".into()],
        egress: vec![Rule { peers, ports }],
        ..policy("shop", "out", "web")
    };
    let named =
        egress(vec![pods(&[("app", "client")])], vec![port("TCP", PortValue::Name("web".into()), None)]);
    rig.listed(&["shop", "tools"], &[named], &[object("shop", "client"), object("shop", "web")]);
    rig.wait_isolated("ferrule-policy 1\nshop egress\nend\n");
    let (web, client) = (rig.add("shop", "web"), rig.add("shop", "client"));
    rig.wait("released", |report| report.waiting == 0 && report.is_good() && report.isolated == 2);
    for place in &rig.world.outside {
        serve(place, "outside", 80);
    }
    serve(&rig.world.node, "node", 80);
    let gateways = ["10.1.0.1", "fd00:1::1"].map(|address| address.parse().unwrap());
    let (web_end, client_end, node_end) = (from(&web.pod), from(&client.pod), from(&rig.world.node));
    let (w, c) = (web.addresses, client.addresses);
    let rounds: [(&str, NetworkPolicy, Vec<(End<'_>, &str, [IpAddr; 2], u16, bool)>); 3] = [
        (
            "a named port of the peer",
            egress(vec![pods(&[("app", "client")])], vec![port("TCP", PortValue::Name("web".into()), None)]),
            vec![
                (&web_end, "tcp", c, 82, true),
                (&web_end, "tcp", c, 81, false),
                (&web_end, "udp", outside, 80, false),
                (&web_end, "tcp", gateways, 80, false),
                (&client_end, "tcp", gateways, 80, true),
                (&client_end, "tcp", w, 80, true),
                (&node_end, "udp", w, 80, true),
            ],
        ),
        (
            "a block",
            egress(vec![block("192.0.2.0/24", &[]), block("2001:db8::/64", &[])], vec![number("UDP", 80)]),
            vec![
                (&web_end, "udp", outside, 80, true),
                (&web_end, "tcp", outside, 80, false),
                (&web_end, "tcp", c, 82, false),
            ],
        ),
        (
            "a block with an exception",
            egress(except.to_vec(), Vec::new()),
            vec![(&web_end, "udp", outside, 80, false)],
        ),
    ];
    for (round, policy, tries) in rounds {
        rig.tell([Told::Policy(policy)]);
        rig.settle();
        try_all(round, &tries);
    }

    // Another program cannot take the table away. What an ended daemon leaves holds.
    let listing = rig.world.nft_table("ferrule_policy");
    rig.world.nft("flush ruleset");
    assert_eq!(rig.world.nft_table("ferrule_policy"), listing);
    let late = rig.add("shop", "late");
    assert!(eventually(TIMEOUT, || rig.undecided() == ["late shop/late"]));
    rig.world.nft("flush ruleset");
    rig.stop_daemon();
    let late_end = from(&late.pod);
    try_all("no daemon", &[(&web_end, "udp", outside, 80, false), (&late_end, "udp", outside, 80, false)]);
    rig.start_daemon();
    rig.wait("still unknown", |report| report.unknown.is_some() && report.waiting == 1);
    try_all("unknown", &[(&web_end, "udp", outside, 80, false), (&late_end, "udp", outside, 80, false)]);
    let objects = [object("shop", "client"), object("shop", "web"), object("shop", "late")];
    let all = egress(vec![pods(&[("app", "client")])], Vec::new());
    // Without an announcement the address comes from the API.
    let with_address = |mut pod: model::Pod, addresses: [IpAddr; 2]| {
        for address in addresses {
            match address {
                IpAddr::V4(v4) => pod.addresses.v4 = Some(v4),
                IpAddr::V6(v6) => pod.addresses.v6 = Some(v6),
            }
        }
        pod
    };
    let [of_client, of_web, of_late] = objects;
    let objects = [with_address(of_client, c), with_address(of_web, w), of_late];
    rig.listed(&["shop", "tools"], &[all.clone()], &objects);
    rig.wait("decided", |report| report.waiting == 0 && report.is_good() && report.isolated == 2);
    try_all(
        "restarted",
        &[
            (&web_end, "udp", outside, 80, false),
            (&web_end, "udp", c, 80, true),
            (&late_end, "udp", outside, 80, true),
        ],
    );

    // A pod whose object is gone is closed while it has a link; then its address is free.
    rig.tell([Told::Gone(Kind::Pods, key("shop", "web"))]);
    rig.wait("the pod is gone", |report| report.isolated == 0);
    try_all("gone", &[(&web_end, "udp", c, 80, false), (&client_end, "udp", w, 80, false)]);
    rig.del(&web);
    let has_former = || rig.world.nft_table("ferrule_policy").contains(&w[0].to_string());
    assert!(eventually(TIMEOUT, || !has_former()), "{}", rig.world.nft_table("ferrule_policy"));

    rig.stop_daemon();
    let removed = rig.world.node.run(|| stand_down(Path::new(PATH))).unwrap().unwrap();
    assert_eq!(removed, ["table inet ferrule_policy", "table inet ferrule_pods"]);
    assert_eq!((rig.world.listing().as_str(), rig.isolated().as_str()), ("", "ferrule-policy 1\nend\n"));
    assert_eq!(rig.world.node.run(|| stand_down(Path::new(PATH))).unwrap().unwrap(), [""; 0]);
    assert_eq!(rig.world.node.run(cleanup).unwrap().unwrap(), [format!("file {PATH}")]);
}

//! The time of the thread that enforces NetworkPolicies, with hand-made objects, and what packets cost. Prints Markdown tables.
//!
//! Run it as root with `cargo bench -p ferrule-node --bench policy`; with `-- thread` or `-- traffic` it measures only the thread or the
//! packets. The thread's processor time, kernel included, depends less on other load than the time until a change holds. Figures are only
//! reported. What the whole daemon needs with 10,000 pods: `--bench cluster -- policies`. The first packets of 10,000 new pods:
//! `FERRULE_POLICY_STARTS=10000 cargo test -p ferrule-policy --test traffic nothing_passes`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "policy/traffic.rs"]
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cni_lab::{Node, Place as _};
use ferrule_kernel::ip::octets;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Element, find_elements};
use ferrule_node::policy::objects::{Key, Kind, Names, Told, channel};
use ferrule_node::policy::{Handle, How, Report, spawn};
use ferrule_node_policy::model::{
    Addresses, LabelSelector, Namespace, NetworkPolicy, Peer, Pod, Port, PortValue, Rule,
};
use ferrule_policy_kit::table;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

const ROUNDS: usize = 300;
const FLOWS: u32 = 200_000;

struct Thread {
    told: Sender<Told>,
    handle: Handle,
    markers: usize,
    /// Its folder in `/proc`.
    id: String,
    _folder: tempfile::TempDir,
}

/// The folders of the threads that enforce.
fn threads() -> BTreeSet<String> {
    let all = fs::read_dir("/proc/self/task").unwrap().flatten();
    let is_one = |path: &str| fs::read_to_string(format!("{path}/comm")).is_ok_and(|name| name == "policy\n");
    all.map(|thread| thread.path().display().to_string()).filter(|path| is_one(path)).collect()
}

fn labels(key: &str, value: String) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value)])
}

fn selects(key: &str, value: String) -> Option<LabelSelector> {
    Some(LabelSelector { labels: labels(key, value), ..LabelSelector::default() })
}

fn policy(space: usize, number: usize, port: i32) -> NetworkPolicy {
    let pods = Peer { pods: selects("app", format!("app-{}", (number + 1) % 10)), ..Peer::default() };
    let others = Peer { namespaces: selects("team", format!("team-{}", space + 1)), ..Peer::default() };
    let ports = vec![Port { port: Some(PortValue::Number(port)), ..Port::default() }];
    NetworkPolicy {
        namespace: format!("s{space}"),
        name: format!("p{number}"),
        pods: LabelSelector { labels: labels("app", format!("app-{number}")), ..LabelSelector::default() },
        ingress: vec![Rule { peers: vec![pods, others], ports }],
        ..NetworkPolicy::default()
    }
}

fn pod(space: usize, number: usize, id: usize) -> Pod {
    let id = u32::try_from(id).unwrap();
    Pod {
        namespace: format!("s{space}"),
        name: format!("web-{number}"),
        uid: format!("uid-{id}"),
        labels: labels("app", format!("app-{}", number % 10)),
        addresses: Addresses {
            v4: Some(Ipv4Addr::from(0x0a64_0002 + id)),
            v6: Some(Ipv6Addr::from((0xfd01 << 112) | (u128::from(id) + 2))),
        },
        local: true,
        ..Pod::default()
    }
}

fn namespace(space: usize, team: usize) -> Namespace {
    Namespace { name: format!("s{space}"), labels: labels("team", format!("team-{team}")), mode: None }
}

impl Thread {
    fn start(node: &Node) -> Thread {
        let (told, objects) = channel();
        // Not the machine's own file: a node of the lab sees that, too.
        let folder = tempfile::tempdir().unwrap();
        let how = How { path: folder.path().join("isolated"), ..How::default() };
        let others = threads();
        let handle = node.run(|| spawn(how, objects, watch::channel(BTreeSet::new()).1)).unwrap().unwrap();
        let own = loop {
            // It gets its name when it runs.
            match (&threads() - &others).pop_first() {
                Some(own) => break own,
                None => sleep(Duration::from_millis(1)),
            }
        };
        Thread { told, handle, markers: 0, id: own, _folder: folder }
    }

    /// The processor time of the thread so far.
    fn used(&self) -> Duration {
        let all = fs::read_to_string(format!("{}/schedstat", self.id)).unwrap();
        Duration::from_nanos(all.split(' ').next().unwrap().parse().unwrap())
    }

    /// Prints the times of a measurement that began with this processor time of the thread.
    fn row(&self, what: &str, before: Duration, mut times: Vec<Duration>) {
        let used = (self.used() - before).as_secs_f64() * 1000.0 / times.len() as f64;
        times.sort_unstable();
        let ms = |at: usize| times[at].as_secs_f64() * 1000.0;
        println!("| {what} | {:.1} | {:.1} | {used:.1} |", ms(times.len() / 2), ms(times.len() * 99 / 100));
    }

    /// Tells all objects: so many pods and policies in each namespace. Returns how long it took.
    fn fill(&self, spaces: usize, pods: usize, policies: usize) -> Duration {
        let mut names = Kind::ALL.map(|_| Names::default());
        let began = Instant::now();
        for space in 0..spaces {
            let name = format!("s{space}");
            names[2].insert(&name, &name);
            self.tell(Told::Namespace(namespace(space, space)));
            for number in 0..policies {
                names[0].insert(&name, &format!("p{number}"));
                self.tell(Told::Policy(policy(space, number, 80)));
            }
            for number in 0..pods {
                names[3].insert(&name, &format!("web-{number}"));
                self.tell(Told::Pod(pod(space, number, space * pods + number)));
            }
        }
        for (kind, names) in Kind::ALL.into_iter().zip(names) {
            self.tell(Told::Listed(kind, names));
        }
        let isolated = if policies == 0 { 0 } else { 2 * spaces * pods };
        self.wait(|report| report.is_good() && report.isolated == isolated);
        began.elapsed()
    }

    fn tell(&self, told: Told) {
        self.told.blocking_send(told).unwrap();
    }

    fn wait(&self, is_so: impl Fn(&Report) -> bool) {
        while !is_so(&self.handle.report.borrow()) {
            sleep(Duration::from_micros(50));
        }
    }

    /// How long the change takes, with one more policy that selects no pod.
    fn change(&mut self, told: Told) -> Duration {
        let before = self.handle.report.borrow().policies;
        self.markers += 1;
        let name = format!("marker-{}", self.markers);
        let marker = NetworkPolicy { namespace: "s0".into(), name: name.clone(), ..policy(0, 99, 1) };
        let began = Instant::now();
        self.tell(told);
        self.tell(Told::Policy(marker));
        self.wait(|report| report.policies != before);
        let took = began.elapsed();
        self.tell(Told::Gone(Kind::Policies, Key { namespace: "s0".into(), name: name.into() }));
        self.wait(|report| report.policies == before);
        took
    }

    fn changes(&mut self, what: &str, mut change: impl FnMut(usize) -> Told) {
        let before = self.used();
        let times = (0..ROUNDS).map(|round| self.change(change(round))).collect();
        self.row(what, before, times);
    }

    fn end(self) {
        drop(self.told);
        self.handle.join();
    }
}

fn main() {
    let is_asked = |part: &str| {
        let others = ["thread", "traffic"].into_iter().filter(|other| *other != part);
        !others.into_iter().any(|other| std::env::args().any(|argument| argument == other))
    };
    if is_asked("thread") {
        thread_alone();
    }
    if is_asked("traffic") {
        traffic::compare();
    }
}

fn thread_alone() {
    println!("| ms | median | p99 | processor time of one |\n|---|---:|---:|---:|");
    let node = Node::new().unwrap();
    let thread = Thread::start(&node);
    let took = thread.fill(64, 20, 10);
    thread.row(
        "640 policies, 1,280 pods of this node, both families, from nothing",
        Duration::ZERO,
        vec![took],
    );
    thread.end();
    let mut thread = Thread::start(&node);
    thread.fill(10, 100, 10);
    thread.changes("1,000 pods, 100 policies: a port of a policy", |round| {
        Told::Policy(policy(round % 10, round / 10 % 10, 81 + round as i32 % 7))
    });
    thread.changes("a label of a pod", |round| {
        let number = round / 10 % 100;
        let app = format!("app-{}", (number + round % 2) % 10);
        Told::Pod(Pod { labels: labels("app", app), ..pod(round % 10, number, round % 10 * 100 + number) })
    });
    thread.changes("a label of a namespace of 100 pods", |round| {
        Told::Namespace(namespace(round % 10, round / 10 % 2 * 20 + round % 10))
    });
    let released = "from the announcement of a pod that is known until it is released";
    announcements(&node, &thread, released, ROUNDS);
    let sender = make_flows(&node);
    let count = node.sh("cat /proc/sys/net/netfilter/nf_conntrack_count").unwrap();
    let beside = format!("beside {} flows", count.trim());
    announcements(&node, &thread, &format!("the same {beside}"), ROUNDS / 10);
    denials(&sender, &mut thread, &format!("a change of 20 addresses that ends 100 flows, {beside}"));
    thread.end();
}

/// From the plugin's transaction until the pod is released. The processor time is with that of its object, before and afterwards.
fn announcements(node: &Node, thread: &Thread, what: &str, rounds: usize) {
    let mut socket = node.run(Socket::netfilter).unwrap().unwrap();
    let mut batch = Batch::new();
    table::establish(&mut batch);
    batch.commit(&mut socket).unwrap();
    let (mut times, before) = (Vec::new(), thread.used());
    for round in 0..rounds {
        let new = Pod { addresses: Addresses::default(), ..pod(round % 10, 1000, 5000 + round) };
        let pod = pod(round % 10, 1000, 5000 + round);
        let key = Key { namespace: pod.namespace.as_str().into(), name: pod.name.as_str().into() };
        let comment = format!("{} {}/{}", pod.uid, pod.namespace, pod.name);
        thread.tell(Told::Pod(new));
        sleep(Duration::from_millis(20));
        let wanted: Vec<_> = pod
            .addresses
            .all()
            .map(|ip| (if ip.is_ipv4() { "ingress4" } else { "ingress6" }, octets(ip)))
            .collect();
        let mut batch = Batch::new();
        for (set, key) in &wanted {
            let element = Element { comment: Some(comment.clone()), ..Element::new(key.clone()) };
            batch.add_elements(table::TABLE, set, &[element]);
        }
        let began = Instant::now();
        batch.commit(&mut socket).unwrap();
        let keys: Vec<_> = wanted.iter().map(|(set, key)| (*set, key.as_slice())).collect();
        while find_elements(&mut socket, table::TABLE, &keys).unwrap().iter().any(Option::is_some) {
            sleep(Duration::from_micros(50));
        }
        times.push(began.elapsed());
        thread.tell(Told::Gone(Kind::Pods, key));
    }
    thread.row(what, before, times);
}

/// Makes many flows of a pod of another node, which it returns. It has a route to the first pod, too.
fn make_flows(node: &Node) -> cni_lab::Pod {
    let sender = node.pod("sender").unwrap();
    let own = pod(0, 0, 0).addresses.v4.unwrap();
    node.sh(&format!(
        "set -e; echo 1 >/proc/sys/net/ipv4/ip_forward; echo 3600 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout
        ip link add v0 type veth peer name eth0 netns sender; ip link set v0 up; ip addr add 10.1.0.1/24 dev v0
        ip link add d0 type veth peer name d1; ip link set d0 up; ip link set d1 up; ip route add 10.9.0.0/16 dev d0; ip neigh add 10.9.0.1 lladdr 02:00:00:00:00:01 dev d0
        ip route add {own}/32 dev d0; ip neigh add {own} lladdr 02:00:00:00:00:02 dev d0"
    ))
    .unwrap();
    sender
        .sh("ip link set eth0 up; ip addr add 10.1.0.2/24 dev eth0; ip route add default via 10.1.0.1")
        .unwrap();
    let ports = 4000..4000 + FLOWS / 40_000;
    sender
        .run(|| {
            for port in ports {
                let socket = UdpSocket::bind(("0.0.0.0", u16::try_from(port).unwrap())).unwrap();
                for to in 1000..41_000 {
                    let _ = socket.send_to(b"?", ("10.9.0.1", to));
                }
            }
        })
        .unwrap();
    sender
}

/// A change that denies, beside many other flows.
fn denials(sender: &cni_lab::Pod, thread: &mut Thread, what: &str) {
    let own = pod(0, 0, 0).addresses.v4.unwrap();
    let from = |cidr: &str| {
        let block = ferrule_node_policy::model::IpBlock { cidr: cidr.to_owned(), except: Vec::new() };
        let rule = Rule { peers: vec![Peer { block: Some(block), ..Peer::default() }], ports: Vec::new() };
        NetworkPolicy { ingress: vec![rule], ..policy(0, 0, 80) }
    };
    let (mut times, before) = (Vec::new(), thread.used());
    for _ in 0..20 {
        thread.change(Told::Policy(from("10.1.0.0/24")));
        let _: Vec<()> = (0..100)
            .map(|_| {
                sender.run(|| {
                    UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"?", (IpAddr::V4(own), 80)).map(drop)
                })
            })
            .map(|sent| sent.unwrap().unwrap())
            .collect();
        times.push(thread.change(Told::Policy(from("10.2.0.0/24"))));
    }
    thread.row(what, before, times);
}

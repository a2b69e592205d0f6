//! What `ferrule policy why` says: the kernel's rules, the objects of the API, and real packets in random cases agree, also of packets that go to
//! Services and host ports. Sixty cases; with `FERRULE_WHY_CASES=10000` as many.

use std::net::{IpAddr, SocketAddr};
use std::thread;

use cni_lab::Place as _;
use cni_lab::testing::{Random, ask};
use ferrule_kernel::netlink::Socket;
use ferrule_node::policy::objects::{Kind, Told};
use ferrule_node_policy::model::{NetworkPolicy, Peer, PortValue, Rule};
use ferrule_policy_kit::ask::{Answer, Ask, Flow, Question, Reason};
use ferrule_policy_kit::in_kernel::{Hook, ruled};
use ferrule_policy_kit::ruled::{Cause, Ruled};
use ferrule_policy_kit::walk::Packet;
use tokio::sync::oneshot;

use super::rig::{End, Rig, Started, block, from, key, number, object, pods, policy, port};

const TCP: u8 = 6;
const UDP: u8 = 17;
const PODS: [(&str, &str); 4] = [("shop", "web"), ("shop", "client"), ("tools", "tool"), ("tools", "spare")];

impl Rig {
    fn asks(&self, what: Ask) -> Answer {
        let (sender, answer) = oneshot::channel();
        self.questions().blocking_send((what, sender)).unwrap();
        answer.blocking_recv().unwrap()
    }

    fn kernel(&self, question: &Question) -> Ruled {
        let Question { from: source, to: destination, protocol, port } = *question;
        let packet = Packet { source, destination, protocol, port, input: None };
        let own = ["10.1.0.1", "fd00:1::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let hook = if own.contains(&destination) { Hook::Input } else { Hook::Forward };
        let walk = || ruled(&mut Socket::netfilter().unwrap().with_whole_dumps(), &packet, hook).unwrap();
        self.world.node.run(walk).unwrap()
    }
}

fn question(from: IpAddr, to: IpAddr, protocol: u8, port: u16) -> Question {
    Question { from, to, protocol, port }
}

fn one_of<T: Clone>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len())].clone()
}

fn a_rule(random: &mut Random) -> Rule {
    let anywhere = Peer { namespaces: Some(Default::default()), ..Peer::default() };
    let peers = [
        pods(&[("app", "client")]),
        pods(&[("app", "web")]),
        Peer { pods: Some(super::rig::selects(&[("app", "tool")])), ..anywhere.clone() },
        anywhere,
        block("10.1.0.0/29", &["10.1.0.3/32"]),
        block("fd00:1::/125", &["fd00:1::4/127"]),
        block("2001:db8::/32", &[]),
    ];
    let ports = [
        number("TCP", 80),
        number("UDP", 81),
        port("TCP", PortValue::Number(80), Some(82)),
        port("TCP", PortValue::Name("web".into()), None),
    ];
    let peers = (0..random.below(3)).map(|_| one_of(random, &peers)).collect();
    let ports = (0..random.below(3)).map(|_| one_of(random, &ports)).collect();
    Rule { peers, ports }
}

fn a_policy(random: &mut Random, at: usize) -> NetworkPolicy {
    let (namespace, app) = one_of(random, &PODS);
    let types = one_of(random, &[vec!["Ingress"], vec!["Egress"], vec!["Ingress", "Egress"]]);
    let mut rules = || (0..random.below(3)).map(|_| a_rule(random)).collect::<Vec<_>>();
    let (ingress, egress) = (rules(), rules());
    let types = types.into_iter().map(str::to_owned).collect();
    NetworkPolicy { types, ingress, egress, ..policy(namespace, &format!("p{at}"), app) }
}

/// The Service of each pod, with ports of its own; those of outside clients are host ports, one address with ports of each pod.
fn ways(rig: &Rig, started: &[Started]) {
    let mut rules = String::new();
    for (at, of) in started.iter().enumerate() {
        for (of, to) in [("ip", of.addresses[0]), ("ip6", of.addresses[1])] {
            for offset in 0..4 {
                let target = SocketAddr::new(to, 80 + offset);
                for (via, is_host_port) in
                    [(service(at, to, target.port()), false), (host_port(rig, at, to, target.port()), true)]
                {
                    let (ip, port) = (via.ip(), via.port());
                    let point = if is_host_port { "fib daddr type local " } else { "" };
                    rules += &format!(
                        "{point}{of} daddr {ip} meta l4proto {{ tcp, udp }} th dport {port} dnat {of} to {target}\n"
                    );
                }
            }
        }
    }
    rig.world.nft(&format!(
        "table inet ways {{ chain prerouting {{ type nat hook prerouting priority dstnat; {rules} }}; }}"
    ));
}

fn service(at: usize, to: IpAddr, port: u16) -> SocketAddr {
    let ip = if to.is_ipv4() { format!("10.96.0.{}", at + 1) } else { format!("fd00:96::{}", at + 1) };
    SocketAddr::new(ip.parse().unwrap(), port + 1000)
}

fn host_port(rig: &Rig, at: usize, to: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(rig.world.address(to.is_ipv6()), port + 2000 + 100 * at as u16)
}

fn api_allows(flow: &Flow) -> bool {
    [flow.egress.reason, flow.ingress.reason].iter().all(|reason| reason.allows() != Some(false))
}

#[test]
fn why_agrees_with_packets_in_random_cases() {
    let cases = std::env::var("FERRULE_WHY_CASES").map_or(60, |text| text.parse::<usize>().unwrap());
    let mut random = Random::seeded();
    let rig = Rig::new();
    rig.start_daemon();
    let objects = PODS.map(|(namespace, app)| object(namespace, app));
    rig.listed(&["shop", "tools"], &[], &objects);
    let started: Vec<Started> = PODS.iter().map(|(namespace, app)| rig.add(namespace, app)).collect();
    // No policy isolates their namespaces yet, so the API alone tells the addresses.
    for (mut pod, of) in objects.into_iter().zip(&started) {
        for address in of.addresses {
            match address {
                IpAddr::V4(v4) => pod.addresses.v4 = Some(v4),
                IpAddr::V6(v6) => pod.addresses.v6 = Some(v6),
            }
        }
        rig.tell([Told::Pod(pod)]);
    }
    ways(&rig, &started);
    let ends: Vec<_> = started.iter().map(|one| from(&one.pod)).collect();
    let outside = rig.world.outside.each_ref().map(from);
    let (mut done, mut denied, mut known) = (0, 0, 0);
    while done < cases || (denied == 0 || denied == done) && done < cases + 1000 {
        let policies: Vec<_> = (0..2 + random.below(4)).map(|at| a_policy(&mut random, at)).collect();
        for at in 0..known {
            let gone = |namespace| Told::Gone(Kind::Policies, key(namespace, &format!("p{at}")));
            rig.tell(["shop", "tools"].map(gone));
        }
        known = policies.len();
        rig.tell(policies.iter().cloned().map(Told::Policy));
        rig.settle();
        let mut tries: Vec<(End<'_>, SocketAddr, Question)> = Vec::new();
        for (at, to) in started.iter().enumerate() {
            for (family, protocol) in [(0, TCP), (1, TCP), (0, UDP), (1, UDP)] {
                let ip = to.addresses[family];
                for (number, from) in started.iter().enumerate().filter(|(number, _)| *number != at) {
                    let port = 80 + random.below(4) as u16;
                    let direct = SocketAddr::new(ip, port);
                    let via = one_of(&mut random, &[direct, service(at, ip, port)]);
                    tries.push((&ends[number], via, question(from.addresses[family], ip, protocol, port)));
                }
                let (client, port) = (rig.world.outside[family].address(), 80 + random.below(4) as u16);
                tries.push((
                    &outside[family],
                    host_port(&rig, at, ip, port),
                    question(client, ip, protocol, port),
                ));
            }
        }
        let questions = tries.iter().map(|(.., question)| *question).collect();
        let flows = rig.asks(Ask::Why(questions)).flows;
        assert_eq!(flows.len(), tries.len());
        let wrong: Vec<String> = thread::scope(|scope| {
            let runs: Vec<_> = tries
                .iter()
                .zip(&flows)
                .map(|((from, via, question), flow)| {
                    let kernel = rig.kernel(question);
                    scope.spawn(move || {
                        let says = kernel.allowed;
                        let proto = if question.protocol == TCP { "tcp" } else { "udp" };
                        let is_right = says.is_some_and(|passes| from(proto, *via, passes));
                        (!is_right || says != Some(api_allows(flow)))
                            .then(|| format!("{question:?} by {via}: {kernel:?} {flow:?}"))
                    })
                })
                .collect();
            runs.into_iter().filter_map(|run| run.join().unwrap()).collect()
        });
        assert!(wrong.is_empty(), "{policies:#?}: {wrong:#?}");
        denied += flows.iter().filter(|flow| !api_allows(flow)).count();
        done += tries.len();
    }
    println!("{done} cases agree, {denied} of them denied");
    assert!(denied > 0 && denied < done);
}

/// What is no matter of the objects alone.
#[test]
fn why_knows_undecided_and_ended_pods_the_node_and_ended_flows() {
    let rig = Rig::new();
    // Without a table nothing is enforced.
    let outside = rig.world.outside[0].address();
    let nothing = rig.kernel(&question(outside, [10, 1, 0, 9].into(), TCP, 80));
    assert_eq!((nothing.allowed, nothing.cause), (Some(true), Cause::NotEnforced));
    rig.start_daemon();
    let unknown = rig.asks(Ask::Pods);
    assert!(unknown.error.is_some_and(|error| error.contains("not known yet")));
    let closed = policy("shop", "web", "web");
    rig.listed(&["shop"], std::slice::from_ref(&closed), &[object("shop", "client")]);
    rig.wait_isolated("ferrule-policy 1\nshop ingress\nend\n");
    let (web, client) = (rig.add("shop", "web"), rig.add("shop", "client"));
    let [web4, web6] = web.addresses;
    let from_client = question(client.addresses[0], web4, TCP, 80);
    rig.wait("the pod waits", |report| report.undecided == ["web shop/web"]);
    let undecided = rig.kernel(&from_client);
    assert_eq!((undecided.allowed, undecided.cause), (Some(false), Cause::Undecided), "{undecided:?}");
    rig.tell([Told::Pod(object("shop", "web"))]);
    rig.wait("decided", |report| report.waiting == 0 && report.isolated == 2);
    for question in [from_client, question(client.addresses[1], web6, UDP, 81)] {
        let denied = rig.kernel(&question);
        assert_eq!((denied.allowed, denied.cause), (Some(false), Cause::Policy), "{denied:?}");
    }
    // A pod and itself; an address of the node.
    assert_eq!(rig.kernel(&question(web4, web4, TCP, 80)).cause, Cause::Itself);
    let to_node = rig.kernel(&question(web4, [10, 1, 0, 1].into(), TCP, 80));
    assert_eq!((to_node.allowed, to_node.cause), (Some(true), Cause::Passes));
    let flow = rig.asks(Ask::Why(vec![from_client])).flows.remove(0);
    assert_eq!(
        (flow.ingress.pods, flow.ingress.reason),
        (vec!["shop/web".to_owned()], Reason::NothingAllows)
    );
    // A flow that a change ends.
    let open = NetworkPolicy { ingress: vec![Rule::default()], ..closed.clone() };
    rig.tell([Told::Policy(open)]);
    rig.settle();
    assert!(ask(&client.pod, "udp", (web4, 81).into()).is_ok());
    rig.tell([Told::Policy(closed)]);
    rig.settle();
    let of_ended = rig.kernel(&question(client.addresses[0], web4, UDP, 81));
    assert!(of_ended.notes.iter().any(|note| note.contains("ended a flow")), "{of_ended:?}");
    // A pod whose object is gone, and whose link is still there.
    rig.tell([Told::Gone(Kind::Pods, key("shop", "web"))]);
    rig.wait("the pod is gone", |report| report.isolated == 0);
    let ended = rig.kernel(&from_client);
    assert_eq!((ended.allowed, ended.cause), (Some(false), Cause::EndedPod), "{ended:?}");
    rig.stop_daemon();
}

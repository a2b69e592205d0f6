//! Random policies and real packets, which the judge judges.

use cni_lab::testing::Random;
use cni_lab::{Place as _, TIMEOUT, eventually};
use ferrule_node::policy::objects::{Kind, Listed, Told};
use ferrule_node_policy::Compiler;
use ferrule_node_policy::judge::{Packet, judge};
use ferrule_node_policy::model::{Namespace, NetworkPolicy, Peer, PortValue, Rule};

use super::packets::{Ends, SCTP, SYN, TCP, UDP, extension, icmp_of};
use super::rig::{Rig, block, key, known, labels, number, object, pods, policy, port, selects};
use super::wire::{Ear, Gun, marked};

const ROUNDS: usize = 4;
const PACKETS: usize = 150;
const PODS: [(&str, &str); 4] = [("one", "a"), ("one", "b"), ("two", "c"), ("two", "d")];
const POLICIES: usize = 4;

fn one_of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len())]
}

fn peer(random: &mut Random) -> Peer {
    let namespace = one_of(random, &["one", "two"]);
    let app = PODS[random.below(PODS.len())].1;
    match random.below(5) {
        0 => block("10.1.0.0/24", &["10.1.0.3/32"]),
        1 => block("fd00:1::/64", &[]),
        2 => block("192.0.2.0/24", &[]),
        3 => Peer { namespaces: Some(selects(&[("name", namespace)])), ..Peer::default() },
        _ => Peer { namespaces: Some(selects(&[])), ..pods(&[("app", app)]) },
    }
}

fn rule(random: &mut Random) -> Rule {
    let peers = (0..random.below(3)).map(|_| peer(random)).collect();
    let mut ports = Vec::new();
    for _ in 0..random.below(3) {
        let protocol = one_of(random, &["TCP", "UDP", "SCTP"]);
        let first = 80 + i32::try_from(random.below(5)).unwrap();
        ports.push(match random.below(4) {
            0 => port(protocol, PortValue::Number(first), Some(first + 2)),
            1 => port("TCP", PortValue::Name("web".into()), None),
            _ => number(protocol, first),
        });
    }
    Rule { peers, ports }
}

fn policies(random: &mut Random) -> Vec<NetworkPolicy> {
    let one = |name: usize| {
        let (namespace, app) = one_of(random, &PODS);
        let rules = |random: &mut Random| (0..random.below(3)).map(|_| rule(random)).collect();
        let mut policy = policy(namespace, &format!("p{name}"), app);
        if random.below(3) == 0 {
            policy.pods = selects(&[]);
        }
        policy.types = one_of(random, &[&["Ingress"][..], &["Egress"], &["Ingress", "Egress"], &[]])
            .iter()
            .map(ToString::to_string)
            .collect();
        policy.ingress = rules(random);
        policy.egress = rules(random);
        policy
    };
    (0..POLICIES).map(one).collect()
}

/// A packet in one of several forms.
fn write(random: &mut Random, ends: &Ends, protocol: u8, data: &[u8]) -> Vec<Vec<u8>> {
    let part = match protocol {
        TCP => ends.tcp(SYN, data),
        UDP => ends.udp(data),
        SCTP => ends.sctp(data),
        _ => {
            let kind = if ends.source.is_ipv4() { 8 } else { 128 };
            ends.icmp(kind, 0, &[&ends.ports[0].to_be_bytes()[..], &[0, 1], data].concat())
        }
    };
    match (random.below(3), ends.source.is_ipv4()) {
        (0, _) => vec![ends.packet(protocol, &part)],
        (1, true) => vec![ends.ipv4(protocol, (0, false), &[1; 8], &part)],
        (1, false) => vec![ends.ipv6(60, &[&extension(protocol)[..], &part].concat())],
        _ => ends.in_two(protocol, &part, 40).into(),
    }
}

/// Each packet arrives if and only if the judge says so.
#[test]
fn random_packets_meet_the_judge() {
    let mut random = Random::seeded();
    let rig = Rig::new();
    rig.start_daemon();
    rig.listed(&["one", "two"], &[], &[]);
    let started = PODS.map(|(namespace, app)| {
        rig.tell([Told::Pod(object(namespace, app))]);
        rig.add(namespace, app)
    });
    let (mut compiler, mut listed) = (Compiler::default(), Listed::default());
    let namespace =
        |name: &str| Namespace { name: name.to_owned(), labels: labels(&[("name", name)]), mode: None };
    let mut tell = |compiler: &mut Compiler, told: &dyn Fn() -> Vec<Told>| {
        told().into_iter().for_each(|one| listed.apply(one, compiler));
        rig.tell(told());
    };
    tell(&mut compiler, &|| {
        let pods = PODS.iter().zip(&started).map(|((namespace, _), pod)| Told::Pod(known(namespace, pod)));
        ["one", "two"].into_iter().map(|name| Told::Namespace(namespace(name))).chain(pods).collect()
    });
    let outside = rig.world.outside.each_ref();
    let mut ears: Vec<Ear> = started.iter().map(|one| Ear::on_links(&one.pod)).collect();
    ears.extend(outside.iter().map(|client| Ear::on_links(*client)));
    let guns = started.each_ref().map(|one| Gun::of(&one.pod));
    for one in &started {
        let _ = one.pod.sh("ping -c 1 -W 1 10.1.0.1; ping -c 1 -W 1 fd00:1::1");
    }
    let (mut count, mut passed) = (0, 0);
    for round in 0..ROUNDS {
        let policies = policies(&mut random);
        tell(&mut compiler, &|| policies.iter().cloned().map(Told::Policy).collect());
        rig.settle();
        let (mut wanted, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..PACKETS {
            count += 1;
            let (from, to, v6) = (random.below(4), random.below(5), random.below(2));
            if from == to {
                continue;
            }
            let (to, destination) = match to {
                4 => (4 + v6, outside[v6].address()),
                pod => (pod, started[pod].addresses[v6]),
            };
            let source = started[from].addresses[v6];
            let protocol = one_of(&mut random, &[TCP, UDP, SCTP, icmp_of(source)]);
            let place = 80 + u16::try_from(random.below(6)).unwrap();
            let ends = Ends { source, destination, ports: [10_000 + u16::try_from(count).unwrap(), place] };
            let packet = Packet { source, destination, protocol, destination_port: place };
            for one in write(&mut random, &ends, protocol, &marked(count)) {
                guns[from].send(&one, destination);
            }
            sent.push((count, to, packet));
            if judge(compiler.cluster(), &packet).is_allowed() {
                wanted.push((count, to, packet));
            }
        }
        let mut arrived = Vec::new();
        let all_arrive = eventually(TIMEOUT, || {
            let has = |(number, to, _): &&(u32, usize, Packet)| ears[*to].heard().contains(number);
            arrived = sent.iter().filter(has).copied().collect();
            wanted.iter().all(|one| arrived.contains(one))
        });
        let wrong: Vec<_> = sent.iter().filter(|one| wanted.contains(one) != arrived.contains(one)).collect();
        assert!(all_arrive && wrong.is_empty(), "round {round}: {wrong:?}\n{policies:#?}");
        passed += wanted.len();
        let gone = |policy: &NetworkPolicy| Told::Gone(Kind::Policies, key(&policy.namespace, &policy.name));
        tell(&mut compiler, &|| policies.iter().map(gone).collect());
    }
    println!("{count} packets, {passed} pass");
}

//! Short ways to write objects, and a cluster that is asked in both ways.

use std::collections::BTreeMap;

use ferrule_node_policy::judge::{Packet, Why, judge, why};
use ferrule_node_policy::model::*;
use ferrule_node_policy::ruleset::Verdict;
use ferrule_node_policy::{Change, Compiler, Ruleset};

use crate::interpreter;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
pub(crate) const ICMP: u8 = 1;

/// `a=b c=d`.
pub(crate) fn labels(text: &str) -> BTreeMap<String, String> {
    let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    text.split_whitespace().filter_map(pair).collect()
}

pub(crate) fn select(text: &str) -> LabelSelector {
    LabelSelector { labels: labels(text), expressions: Vec::new() }
}

pub(crate) fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelector {
    let values = values.iter().map(|value| value.to_string()).collect();
    let one = Expression { key: key.into(), operator: operator.into(), values };
    LabelSelector { labels: BTreeMap::new(), expressions: vec![one] }
}

/// A pod of this node with the addresses 10.0.0.LAST and fd00::LAST.
pub(crate) fn pod(namespace: &str, name: &str, text: &str, last: u8) -> Pod {
    Pod {
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        labels: labels(text),
        addresses: addresses(last),
        local: true,
        ..Pod::default()
    }
}

pub(crate) fn addresses(last: u8) -> Addresses {
    Addresses { v4: Some([10, 0, 0, last].into()), v6: Some([0xfd00, 0, 0, 0, 0, 0, 0, last.into()].into()) }
}

pub(crate) fn named(mut pod: Pod, name: &str, protocol: Protocol, port: u16) -> Pod {
    pod.ports.push(NamedPort { name: name.into(), protocol, port });
    pod
}

/// A policy of both directions that selects by these labels.
pub(crate) fn policy(
    namespace: &str,
    name: &str,
    pods: &str,
    ingress: &[Rule],
    egress: &[Rule],
) -> NetworkPolicy {
    NetworkPolicy {
        namespace: namespace.into(),
        name: name.into(),
        pods: select(pods),
        types: vec!["Ingress".into(), "Egress".into()],
        ingress: ingress.to_vec(),
        egress: egress.to_vec(),
        unread: None,
    }
}

pub(crate) fn only(mut policy: NetworkPolicy, kind: &str) -> NetworkPolicy {
    policy.types = vec![kind.into()];
    policy
}

pub(crate) fn rule(peers: &[Peer], ports: &[Port]) -> Rule {
    Rule { peers: peers.to_vec(), ports: ports.to_vec() }
}

/// Everything.
pub(crate) fn all() -> Rule {
    Rule::default()
}

pub(crate) fn pods(text: &str) -> Peer {
    Peer { pods: Some(select(text)), ..Peer::default() }
}

pub(crate) fn spaces(text: &str) -> Peer {
    Peer { namespaces: Some(select(text)), ..Peer::default() }
}

pub(crate) fn block(cidr: &str, except: &[&str]) -> Peer {
    let except = except.iter().map(|except| except.to_string()).collect();
    Peer { block: Some(IpBlock { cidr: cidr.into(), except }), ..Peer::default() }
}

pub(crate) fn port(protocol: &str, number: i32) -> Port {
    Port { protocol: Some(protocol.into()), port: Some(PortValue::Number(number)), ..Port::default() }
}

pub(crate) fn ports(protocol: &str, number: i32, end: i32) -> Port {
    Port { end_port: Some(end), ..port(protocol, number) }
}

pub(crate) fn port_named(protocol: &str, name: &str) -> Port {
    Port { port: Some(PortValue::Name(name.into())), ..port(protocol, 0) }
}

pub(crate) fn every_port(protocol: &str) -> Port {
    Port { protocol: Some(protocol.into()), ..Port::default() }
}

/// A cluster whose rules are kept as a daemon keeps them: from the changes alone.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) compiler: Compiler,
    pub(crate) kernel: Ruleset,
}

impl World {
    /// The namespace `a` has the label `team=a`, and so on. The pods get the addresses 1, 2, …
    pub(crate) fn of(pods: &[Pod], policies: &[NetworkPolicy]) -> World {
        let mut world = World::default();
        for name in ["a", "b", "c"] {
            let labels = labels(&format!("team={name}"));
            world.compiler.set_namespace(&Namespace { name: name.into(), labels, mode: None });
        }
        pods.iter().for_each(|pod| world.compiler.set_pod(pod));
        policies.iter().for_each(|policy| world.compiler.set_policy(policy.clone()));
        world.update();
        world
    }

    pub(crate) fn update(&mut self) -> Change {
        let former = self.kernel.clone();
        let change = self.compiler.update();
        self.kernel.apply(&change);
        assert_eq!(&self.kernel, self.compiler.ruleset());
        assert_eq!(change, former.difference(&self.kernel));
        assert_eq!(change.is_empty(), former == self.kernel);
        interpreter::is_whole(&self.kernel);
        change
    }

    /// Whether a packet passes between the addresses that end in these numbers, in both families: judge and rules must agree.
    pub(crate) fn passes(&self, from: u8, to: u8, protocol: u8, port: u16) -> bool {
        let verdicts = [Addresses::all(addresses(from)), Addresses::all(addresses(to))];
        let [from, to] = verdicts;
        let mut both = from.zip(to).map(|(source, destination)| {
            self.packet(&Packet { source, destination, protocol, destination_port: port })
        });
        let (v4, v6) = (both.next(), both.next());
        assert_eq!(v4, v6);
        v4 == Some(true)
    }

    pub(crate) fn packet(&self, packet: &Packet) -> bool {
        let verdict = judge(self.compiler.cluster(), packet);
        assert_eq!(
            verdict.is_allowed(),
            interpreter::passes(&self.kernel, packet),
            "{packet:?}: {verdict:?}"
        );
        let Packet { source, destination, protocol, destination_port } = *packet;
        let why = why(self.compiler.cluster(), source, destination, destination_port, protocol);
        let both = |why: [&Why<'_>; 2]| why.map(|why| !why.reason.denies());
        assert_eq!(
            both([&why.egress, &why.ingress]),
            [verdict.egress.is_allowed(), verdict.ingress.is_allowed()],
            "{packet:?}: {why:?}"
        );
        // What would be denied is counted, and nothing else.
        for (direction, why) in [(Direction::Egress, &why.egress), (Direction::Ingress, &why.ingress)] {
            let end = interpreter::end(&self.kernel, packet, direction);
            let said = (why.is_allowed(), why.is_dry);
            assert_eq!(said, (end != Verdict::Deny, end == Verdict::Dry), "{packet:?}: {why:?}");
        }
        verdict.is_allowed()
    }

    /// Whether the plugin isolates a new pod of the namespace in this direction.
    pub(crate) fn isolates(&self, namespace: &str, direction: Direction) -> bool {
        let elsewhere = self.compiler.isolated_elsewhere();
        self.compiler.isolated().get(namespace).copied().unwrap_or(elsewhere).has(direction)
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.compiler
            .faults()
            .map(|fault| format!("{}/{}: {}", fault.namespace, fault.policy, fault.what))
            .collect()
    }
}

//! Random clusters: the ruleset, made by changes in any order, does what the judge says, and equals the ruleset of a new start.

use std::collections::BTreeMap;

use ferrule_node_policy::Compiler;
use ferrule_node_policy::judge::{Packet, Reason, why};
use ferrule_node_policy::model::*;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::kit::*;

const SPACES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Step {
    Pod(Pod),
    NoPod(&'static str, String),
    Space(Namespace),
    NoSpace(&'static str),
    Policy(NetworkPolicy),
    NoPolicy(&'static str, String),
    ClusterPolicy(ClusterNetworkPolicy),
    NoClusterPolicy(String),
    Update,
}

pub(crate) fn space() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&SPACES[..])
}

pub(crate) fn some_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[xy]", "[12]", 0..=2)
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    let operator = prop::sample::select(vec!["In", "In", "NotIn", "NotIn", "Exists", "DoesNotExist", "Like"]);
    let expression = ("[xyz]", operator, vec("[123]", 0..=2))
        .prop_map(|(key, operator, values)| Expression { key, operator: operator.into(), values });
    let labels = prop::collection::btree_map("[xy]", "[12]", 0..=1);
    (labels, vec(expression, 0..=1)).prop_map(|(labels, expressions)| LabelSelector { labels, expressions })
}

fn ip_block() -> impl Strategy<Value = IpBlock> {
    let cidr = || {
        prop::sample::select(vec![
            "10.0.0.0/29",
            "10.0.0.4/30",
            "10.0.0.3/32",
            "::ffff:10.0.0.2/127",
            "0.0.0.0/0",
            "fd00::/126",
            "fd00::6/127",
            "::/0",
            "10.0.0.0/x",
        ])
    };
    (cidr(), vec(cidr(), 0..=2)).prop_map(|(cidr, except)| IpBlock {
        cidr: cidr.into(),
        except: except.into_iter().map(str::to_owned).collect(),
    })
}

fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        3 => (prop::option::of(selector()), prop::option::of(selector()), unread())
            .prop_map(|(pods, namespaces, unread)| Peer { pods, namespaces, block: None, unread }),
        1 => ip_block().prop_map(|block| Peer { block: Some(block), ..Peer::default() }),
    ]
}

fn unread() -> impl Strategy<Value = Option<String>> {
    prop::option::weighted(0.05, Just("x is not known".to_owned()))
}

fn a_port() -> impl Strategy<Value = Port> {
    let protocol = prop::sample::select(vec![None, Some("TCP"), Some("UDP"), Some("SCTP"), Some("ICMP")]);
    let value = prop_oneof![
        (0..5_i32).prop_map(PortValue::Number),
        prop::sample::select(vec!["http", "dns"]).prop_map(|name| PortValue::Name(name.into())),
    ];
    let end = prop::option::weighted(0.2, 1..5_i32);
    (protocol, prop::option::weighted(0.9, value), end, unread()).prop_map(
        |(protocol, port, end_port, unread)| Port {
            protocol: protocol.map(str::to_owned),
            port,
            end_port,
            unread,
        },
    )
}

fn a_rule() -> impl Strategy<Value = Rule> {
    (vec(peer(), 0..=2), vec(a_port(), 0..=2)).prop_map(|(peers, ports)| Rule { peers, ports })
}

pub(crate) fn a_policy() -> impl Strategy<Value = NetworkPolicy> {
    let types = vec(prop::sample::select(vec!["Ingress", "Egress", "Ingress", "Egress", "Other"]), 0..=2);
    (space(), "[pq]", selector(), types, vec(a_rule(), 0..=2), vec(a_rule(), 0..=2), unread()).prop_map(
        |(namespace, name, pods, types, ingress, egress, unread)| NetworkPolicy {
            namespace: namespace.into(),
            name,
            pods,
            types: types.into_iter().map(str::to_owned).collect(),
            ingress,
            egress,
            unread,
        },
    )
}

/// One part that is not understood spoils a rule: few of them have one.
fn good_selector() -> impl Strategy<Value = LabelSelector> {
    let labels = prop::collection::btree_map("[xy]", "[12]", 0..=1)
        .prop_map(|labels| LabelSelector { labels, expressions: Vec::new() });
    let key = prop::sample::select(vec!["x", "y"]);
    prop_oneof![
        24 => labels,
        8 => (key, prop::sample::select(vec!["In", "NotIn"])).prop_map(|(key, word)| expression(key, word, &["1"])),
        1 => selector(),
    ]
}

fn namespaced_pods() -> impl Strategy<Value = NamespacedPods> {
    (good_selector(), good_selector()).prop_map(|(namespaces, pods)| NamespacedPods { namespaces, pods })
}

fn cluster_peer() -> impl Strategy<Value = ClusterPeer> {
    prop_oneof![
        20 => namespaced_pods().prop_map(ClusterPeer::Pods),
        4 => vec(ip_block().prop_map(|block| block.cidr), 1..=2).prop_map(ClusterPeer::Networks),
        1 => Just(ClusterPeer::Unknown("new".into())),
    ]
}

fn cluster_protocol() -> impl Strategy<Value = ClusterProtocol> {
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    prop_oneof![
        20 => (protocol, 1..5_i32, 0..3_i32).prop_map(|(protocol, first, more)| {
            ClusterProtocol::Ports { protocol, first, last: first + more }
        }),
        1 => Just(ClusterProtocol::Ports { protocol: Protocol::Tcp, first: 0, last: 1 }),
        6 => prop::sample::select(vec!["http", "dns"]).prop_map(|name| ClusterProtocol::Named(name.into())),
        1 => Just(ClusterProtocol::Unknown("new".into())),
    ]
}

fn cluster_rule() -> impl Strategy<Value = ClusterRule> {
    let action = prop_oneof![
        20 => prop::sample::select(vec!["Accept", "Deny", "Pass"]),
        1 => Just("Log"),
    ];
    let peers = prop_oneof![20 => vec(cluster_peer(), 1..=2), 1 => Just(Vec::new())];
    (action, peers, vec(cluster_protocol(), 0..=2)).prop_map(|(action, peers, protocols)| ClusterRule {
        name: String::new(),
        action: action.into(),
        peers,
        protocols,
    })
}

pub(crate) fn cluster_policy() -> impl Strategy<Value = ClusterNetworkPolicy> {
    let tier =
        prop::sample::select(vec!["Admin", "Admin", "Admin", "Baseline", "Baseline", "Baseline", "Later"]);
    let subject = prop_oneof![
        9 => namespaced_pods().prop_map(ClusterSubject::Pods),
        1 => Just(ClusterSubject::Unknown("new".into())),
    ];
    let rules = || vec(cluster_rule(), 0..=3);
    ("[klm]", tier, 0..3_i32, subject, rules(), rules()).prop_map(
        |(name, tier, priority, subject, ingress, egress)| ClusterNetworkPolicy {
            name,
            tier: tier.into(),
            priority,
            subject,
            ingress,
            egress,
        },
    )
}

pub(crate) fn a_pod() -> impl Strategy<Value = Pod> {
    let ports = vec((prop::sample::select(vec!["http", "dns"]), prop::bool::ANY, 1..4_u16), 0..=2);
    let kind = prop::sample::select(vec![0, 0, 0, 0, 1, 2, 3]);
    (space(), "[st]", some_labels(), 1..8_u8, prop::bool::weighted(0.7), ports, kind).prop_map(
        |(namespace, name, labels, last, local, ports, kind)| {
            let named = |(name, is_tcp, port): (&str, bool, u16)| NamedPort {
                name: name.into(),
                protocol: if is_tcp { Protocol::Tcp } else { Protocol::Udp },
                port,
            };
            let mut pod = Pod { labels, local, ..pod(namespace, &name, "", last) };
            pod.ports = ports.into_iter().map(named).collect();
            match kind {
                1 => pod.ended = true,
                2 => pod.host_network = true,
                3 => pod.addresses.v4 = None,
                _ => {}
            }
            pod
        },
    )
}

fn mode() -> impl Strategy<Value = Option<&'static str>> {
    prop::sample::select(vec![None, None, None, Some("enforce"), Some("dry"), Some("dry"), Some("Dry")])
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => a_pod().prop_map(Step::Pod),
        1 => (space(), "[st]").prop_map(|(namespace, name)| Step::NoPod(namespace, name)),
        2 => (space(), some_labels(), mode()).prop_map(|(name, labels, mode)| {
            Step::Space(Namespace { name: name.into(), labels, mode: mode.map(str::to_owned) })
        }),
        1 => space().prop_map(Step::NoSpace),
        6 => a_policy().prop_map(Step::Policy),
        1 => (space(), "[pq]").prop_map(|(namespace, name)| Step::NoPolicy(namespace, name)),
        3 => cluster_policy().prop_map(Step::ClusterPolicy),
        1 => "[klm]".prop_map(Step::NoClusterPolicy),
        2 => Just(Step::Update),
    ]
}

fn tell(compiler: &mut Compiler, step: &Step) {
    match step {
        Step::Pod(pod) => compiler.set_pod(pod),
        Step::NoPod(namespace, name) => compiler.remove_pod(namespace, name),
        Step::Space(namespace) => compiler.set_namespace(namespace),
        Step::NoSpace(name) => compiler.remove_namespace(name),
        Step::Policy(policy) => compiler.set_policy(policy.clone()),
        Step::NoPolicy(namespace, name) => compiler.remove_policy(namespace, name),
        Step::ClusterPolicy(policy) => compiler.set_cluster_policy(policy.clone()),
        Step::NoClusterPolicy(name) => compiler.remove_cluster_policy(name),
        Step::Update => {}
    }
}

/// Whether the two are about the same object.
fn is_of_same(one: &Step, other: &Step) -> bool {
    let key = |step: &Step| match step {
        Step::Pod(pod) => Some((0, pod.namespace.clone(), pod.name.clone())),
        Step::NoPod(namespace, name) => Some((0, namespace.to_string(), name.clone())),
        Step::Space(namespace) => Some((1, namespace.name.clone(), String::new())),
        Step::NoSpace(name) => Some((1, name.to_string(), String::new())),
        Step::Policy(policy) => Some((2, policy.namespace.clone(), policy.name.clone())),
        Step::NoPolicy(namespace, name) => Some((2, namespace.to_string(), name.clone())),
        Step::ClusterPolicy(policy) => Some((3, String::new(), policy.name.clone())),
        Step::NoClusterPolicy(name) => Some((3, String::new(), name.clone())),
        Step::Update => None,
    };
    key(one) == key(other)
}

/// Where something is denied, the plugin isolates new pods of that namespace.
fn is_announced(world: &World, isolated: &BTreeMap<&str, Directions>, packet: &Packet) {
    let elsewhere = world.compiler.isolated_elsewhere();
    let of = |namespace| isolated.get(namespace).copied().unwrap_or(elsewhere);
    let why = why(
        world.compiler.cluster(),
        packet.source,
        packet.destination,
        packet.destination_port,
        packet.protocol,
    );
    for (direction, side) in [(Direction::Egress, &why.egress), (Direction::Ingress, &why.ingress)] {
        // Of two pods with one address one may be dry.
        let cluster = world.compiler.cluster();
        let is_mixed = side.reason == Reason::TwoPods
            && side.pods.iter().any(|(namespace, _)| cluster.is_dry_namespace(namespace));
        if !side.is_allowed() && side.reason != Reason::Closed && !is_mixed {
            let is_isolated = side.pods.iter().any(|(namespace, _)| of(namespace).has(direction));
            assert!(is_isolated, "{packet:?} {side:?} {isolated:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rules_do_what_the_judge_says(
        steps in vec(step(), 0..60),
        closed in vec((space(), "[st]"), 0..=2),
        backwards in prop::bool::ANY,
    ) {
        let close = |compiler: &mut Compiler| {
            closed.iter().for_each(|(namespace, name)| compiler.close_pod(namespace, name));
        };
        let mut world = World::default();
        for step in &steps {
            tell(&mut world.compiler, step);
            if matches!(step, Step::Update) {
                world.update();
            }
        }
        close(&mut world.compiler);
        world.update();
        let isolated = world.compiler.isolated();
        for (from, to) in (1..9_u8).flat_map(|from| (1..9_u8).map(move |to| (from, to))) {
            for (source, destination) in addresses(from).all().zip(addresses(to).all()) {
                for (protocol, destination_port) in [(TCP, 1), (TCP, 3), (UDP, 2), (SCTP, 1), (ICMP, 0)] {
                    let packet = Packet { source, destination, protocol, destination_port };
                    world.packet(&packet);
                    is_announced(&world, &isolated, &packet);
                }
            }
        }
        // From nothing, in another order: only the last word on each object counts.
        let mut last: Vec<_> = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            if !steps[at + 1..].iter().any(|later| is_of_same(step, later)) {
                last.push(step);
            }
        }
        if backwards {
            last.reverse();
        }
        let mut anew = World::default();
        last.into_iter().for_each(|step| tell(&mut anew.compiler, step));
        close(&mut anew.compiler);
        anew.update();
        prop_assert_eq!(&anew.kernel, &world.kernel);
        prop_assert_eq!(anew.faults(), world.faults());
        prop_assert_eq!(anew.compiler.isolated(), world.compiler.isolated());
        prop_assert_eq!(anew.compiler.isolated_elsewhere(), world.compiler.isolated_elsewhere());
        // And back to nothing.
        world.compiler.retain_pods(|_, _| false);
        world.compiler.retain_policies(|_, _| false);
        world.compiler.retain_cluster_policies(|_| false);
        world.compiler.retain_namespaces(|_| false);
        world.update();
        prop_assert_eq!(&world.kernel, &Default::default());
    }
}

//! Why a packet passes or not: the policy's entry that is named decides alone, too.

use std::net::IpAddr;

use ferrule_node_policy::Compiler;
use ferrule_node_policy::judge::{
    Decision, Entry, Miss, Missed, Packet, Place, Reason, Why, deniers, judge, unlike, why,
};
use ferrule_node_policy::model::*;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::kit::*;
use crate::random::{a_pod, a_policy, cluster_policy, some_labels, space};

/// Pods and namespaces, without policies.
#[derive(Clone, Debug)]
struct Ground {
    pods: Vec<Pod>,
    spaces: Vec<Namespace>,
}

impl Ground {
    fn with(&self, policies: &[NetworkPolicy], cluster_policies: &[ClusterNetworkPolicy]) -> Compiler {
        let mut compiler = Compiler::default();
        self.spaces.iter().for_each(|space| compiler.set_namespace(space));
        self.pods.iter().for_each(|pod| compiler.set_pod(pod));
        policies.iter().for_each(|policy| compiler.set_policy(policy.clone()));
        cluster_policies.iter().for_each(|policy| compiler.set_cluster_policy(policy.clone()));
        compiler
    }

    fn alone(&self, policy: NetworkPolicy, (packet, direction): (&Packet, Direction)) -> bool {
        let compiler = self.with(&[policy], &[]);
        let verdict = judge(compiler.cluster(), packet);
        let side = if direction == Direction::Ingress { verdict.ingress } else { verdict.egress };
        matches!(side, Decision::Allowed(_))
    }

    /// What each reason claims must hold in a cluster that has nothing else than it names.
    fn prove(&self, reason: &Reason<'_>, at: (&Packet, Direction)) {
        match reason {
            Reason::Itself => assert_eq!(at.0.source, at.0.destination),
            Reason::NotHere | Reason::NoPolicy | Reason::TwoPods | Reason::Closed => {}
            Reason::Accepted(entry) | Reason::Refused(entry) => self.prove_entry(entry, reason, at),
            Reason::Allowed(place) => {
                let rule = with_entry(place.policy, place.entry, at.1, |rule| {
                    let one = |number: Option<usize>, of: usize| number.map_or(0..of, |one| one..one + 1);
                    Rule {
                        peers: rule.peers[one(place.peer, 0)].to_vec(),
                        ports: rule.ports[one(place.port, 0)].to_vec(),
                    }
                });
                assert!(self.alone(rule, at), "{reason:?}");
            }
            Reason::NothingAllows(all) => all.iter().for_each(|missed| self.prove_missed(missed, at)),
        }
    }

    fn prove_entry(&self, entry: &Entry<'_>, reason: &Reason<'_>, (packet, direction): (&Packet, Direction)) {
        let mut alone = entry.policy.clone();
        let rules = if direction == Direction::Ingress { &mut alone.ingress } else { &mut alone.egress };
        *rules = vec![rules[entry.rule].clone()];
        let compiler = self.with(&[], &[alone]);
        let verdict = judge(compiler.cluster(), packet);
        let side = if direction == Direction::Ingress { verdict.ingress } else { verdict.egress };
        match reason {
            Reason::Accepted(_) => assert!(matches!(side, Decision::Accepted(_)), "{reason:?}"),
            _ => assert!(matches!(side, Decision::Refused(_)), "{reason:?}"),
        }
    }

    /// Each decides otherwise. They have what decides if the reason is gone, unless that says the same.
    fn prove_unreached(
        &self,
        why: &Why<'_>,
        (policies, cluster_policies): (&[NetworkPolicy], &[ClusterNetworkPolicy]),
        at: (&Packet, Direction),
    ) {
        for other in &why.unreached {
            assert_ne!(other.denies(), why.reason.denies(), "{why:?}");
            self.prove(other, at);
        }
        let (mut policies, mut cluster_policies) = (policies.to_vec(), cluster_policies.to_vec());
        match &why.reason {
            Reason::Accepted(entry) | Reason::Refused(entry) => {
                let of = |policy: &&mut ClusterNetworkPolicy| policy.name == entry.policy.name;
                let Some(policy) = cluster_policies.iter_mut().rfind(of) else { panic!("{why:?}") };
                let rules = if at.1 == Direction::Ingress { &mut policy.ingress } else { &mut policy.egress };
                // Those behind it keep their numbers. A policy that is not understood denies by all of its rules.
                let nobody = NamespacedPods { pods: select("no=body"), ..NamespacedPods::default() };
                rules[entry.rule].peers = vec![ClusterPeer::Pods(nobody)];
                if !entry.is_understood {
                    return;
                }
            }
            Reason::Allowed(_) | Reason::NothingAllows(_) => policies.clear(),
            _ => return,
        }
        let compiler = self.with(&policies, &cluster_policies);
        let next = explain(&compiler, at);
        let place = |reason: &Reason<'_>| match reason {
            Reason::Accepted(entry) | Reason::Refused(entry) => Some((entry.policy.name.clone(), entry.rule)),
            Reason::Allowed(place) => Some((place.policy.name.clone(), place.entry)),
            Reason::NothingAllows(all) => Some((all[0].policy.name.clone(), 0)),
            _ => None,
        };
        if place(&next.reason).is_some() && next.reason.denies() != why.reason.denies() {
            let all: Vec<_> = why.unreached.iter().map(place).collect();
            assert!(all.contains(&place(&next.reason)), "{why:?}: {next:?}");
        }
    }

    /// A peer is named as unlike if, and only if, it alone does not allow the packet.
    fn prove_unlike(&self, policy: &NetworkPolicy, number: usize, at: (&Packet, Direction)) {
        let (entries, other) = match at.1 {
            Direction::Ingress => (&policy.ingress, at.0.source),
            Direction::Egress => (&policy.egress, at.0.destination),
        };
        let compiler = self.with(&[], &[]);
        let pods = compiler.cluster().names_at(other).count();
        for peer in &entries[number].peers {
            let one = |_: &Rule| Rule { peers: vec![peer.clone()], ports: Vec::new() };
            let allows = self.alone(with_entry(policy, number, at.1, one), at);
            let unlike = unlike(compiler.cluster(), policy, peer, other);
            // Of several pods at an address the first is looked at, and a selector needs a pod.
            if pods == 1 || peer.block.is_some() {
                assert_eq!(unlike.is_empty(), allows, "{unlike:?}: {peer:?} in {policy:?}");
            }
        }
    }

    fn prove_missed(&self, Missed { policy, entries }: &Missed<'_>, at: (&Packet, Direction)) {
        for (number, miss) in entries.iter().enumerate() {
            let changed = |change: fn(Rule) -> Rule| {
                self.alone(with_entry(policy, number, at.1, |rule| change(rule.clone())), at)
            };
            let with_any_peer = changed(|rule| Rule { peers: Vec::new(), ..rule });
            let with_any_port = changed(|rule| Rule { ports: Vec::new(), ..rule });
            let expected = match miss {
                Miss::Peer => [true, false],
                Miss::Port => [false, true],
                Miss::Both | Miss::Void => [false, false],
                Miss::Pair => [true, true],
            };
            assert_eq!([with_any_peer, with_any_port], expected, "{miss:?} in {policy:?}");
            if *miss != Miss::Void {
                self.prove_unlike(policy, number, at);
            }
        }
    }
}

/// The policy with one of its entries alone.
fn with_entry(
    policy: &NetworkPolicy,
    number: usize,
    direction: Direction,
    change: impl Fn(&Rule) -> Rule,
) -> NetworkPolicy {
    let mut alone = policy.clone();
    let entries = if direction == Direction::Ingress { &mut alone.ingress } else { &mut alone.egress };
    *entries = vec![change(&entries[number])];
    alone
}

fn ground() -> impl Strategy<Value = Ground> {
    let a_space = (space(), some_labels()).prop_map(|(name, labels)| Namespace {
        name: name.into(),
        labels,
        mode: None,
    });
    (vec(a_pod(), 4..12), vec(a_space, 3)).prop_map(|(pods, spaces)| Ground { pods, spaces })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_reason_decides_alone(
        ground in ground(),
        policies in vec(a_policy(), 0..6),
        cluster_policies in vec(cluster_policy(), 0..3),
    ) {
        let compiler = ground.with(&policies, &cluster_policies);
        for (from, to) in (1..8_u8).flat_map(|from| (1..8_u8).map(move |to| (from, to))) {
            for (protocol, port) in [(TCP, 1), (UDP, 2), (ICMP, 0), (TCP, 3)] {
                let [source, destination] = [from, to].map(address);
                let packet = Packet { source, destination, protocol, destination_port: port };
                let why = why(compiler.cluster(), source, destination, port, protocol);
                prop_assert_eq!(why.is_allowed(), judge(compiler.cluster(), &packet).is_allowed());
                for (of, direction) in [(&why.egress, Direction::Egress), (&why.ingress, Direction::Ingress)] {
                    ground.prove(&of.reason, (&packet, direction));
                    ground.prove_unreached(of, (&policies, &cluster_policies), (&packet, direction));
                    let named = deniers(compiler.cluster(), &packet, direction);
                    let named: Vec<_> = named.iter().map(ToString::to_string).collect();
                    match &of.reason {
                        Reason::NothingAllows(all) => {
                            let name = |one: &Missed<'_>| format!("NetworkPolicy {}/{}", one.policy.namespace, one.policy.name);
                            prop_assert_eq!(named, all.iter().map(name).collect::<Vec<_>>());
                        }
                        Reason::Refused(Entry { policy, .. }) => {
                            prop_assert_eq!(named, [format!("ClusterNetworkPolicy {}", policy.name)]);
                        }
                        Reason::NotHere | Reason::NoPolicy | Reason::TwoPods | Reason::Closed | Reason::Accepted(_) => {
                            prop_assert!(named.is_empty(), "{:?}", named);
                        }
                        Reason::Itself | Reason::Allowed(_) => {}
                    }
                }
            }
        }
    }
}

fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn explain<'c>(compiler: &'c Compiler, (packet, direction): (&Packet, Direction)) -> Why<'c> {
    let Packet { source, destination, protocol, destination_port: port } = *packet;
    let both = why(compiler.cluster(), source, destination, port, protocol);
    if direction == Direction::Ingress { both.ingress } else { both.egress }
}

/// The reason at the receiver, for IPv4.
fn reason<'w>(world: &'w World, from: u8, to: u8, port: u16) -> Why<'w> {
    let [source, destination] = [from, to].map(address);
    why(world.compiler.cluster(), source, destination, port, TCP).ingress
}

#[test]
fn each_reason_says_where_it_stands() {
    let entries = [rule(&[pods("app=none"), spaces("team=b")], &[port("TCP", 79), port("TCP", 80)]), all()];
    let first = only(policy("a", "first", "app=db", &entries[..1], &[]), "Ingress");
    let mut world = World::of(
        &[
            pod("a", "db", "app=db", 1),
            pod("b", "web", "", 2),
            Pod { local: false, ..pod("c", "far", "", 3) },
        ],
        std::slice::from_ref(&first),
    );
    let allowed = Place { policy: &first, entry: 0, peer: Some(1), port: Some(1) };
    assert_eq!(reason(&world, 2, 1, 80).reason, Reason::Allowed(allowed));
    assert_eq!(reason(&world, 2, 1, 80).pods, [("a", "db")]);
    let missed = |miss| Reason::NothingAllows(vec![Missed { policy: &first, entries: vec![miss] }]);
    assert_eq!(reason(&world, 3, 1, 80).reason, missed(Miss::Peer));
    assert_eq!(reason(&world, 2, 1, 81).reason, missed(Miss::Port));
    assert_eq!(reason(&world, 3, 1, 81).reason, missed(Miss::Both));
    assert_eq!(reason(&world, 1, 2, 80).reason, Reason::NoPolicy);
    assert_eq!(reason(&world, 1, 1, 80).reason, Reason::Itself);
    // A pod of another node is known by its name, and judged there.
    assert_eq!(
        (reason(&world, 1, 3, 80).reason, reason(&world, 1, 3, 80).pods),
        (Reason::NotHere, vec![("c", "far")])
    );
    assert_eq!((reason(&world, 1, 9, 80).reason, reason(&world, 1, 9, 80).pods), (Reason::NotHere, vec![]));
    let tier = |name: &str, priority, actions: &[&str]| ClusterNetworkPolicy {
        name: name.into(),
        tier: "Admin".into(),
        priority,
        ingress: actions
            .iter()
            .map(|action| ClusterRule {
                action: action.to_string(),
                peers: vec![ClusterPeer::Pods(NamespacedPods {
                    namespaces: select("team=b"),
                    ..Default::default()
                })],
                ..ClusterRule::default()
            })
            .collect(),
        ..ClusterNetworkPolicy::default()
    };
    let pass = tier("pass", 1, &["Pass"]);
    world.compiler.set_cluster_policy(pass.clone());
    let passed = reason(&world, 2, 1, 80);
    assert_eq!(
        (passed.passed, passed.reason),
        (vec![Entry { policy: &pass, rule: 0, is_understood: true }], Reason::Allowed(allowed))
    );
    let deny = tier("deny", 0, &["Deny", "Accept"]);
    world.compiler.set_cluster_policy(deny.clone());
    assert_eq!(
        reason(&world, 2, 1, 80).reason,
        Reason::Refused(Entry { policy: &deny, rule: 0, is_understood: true })
    );
    // Behind it: the rest of its policy, the rule that passes, which decides nothing, and the NetworkPolicy.
    let accept = Entry { policy: &deny, rule: 1, is_understood: true };
    assert_eq!(reason(&world, 2, 1, 80).unreached, [Reason::Accepted(accept), Reason::Allowed(allowed)]);
    world.compiler.set_cluster_policy(tier("deny", 0, &["Accept"]));
    assert!(matches!(reason(&world, 2, 1, 9).reason, Reason::Accepted(Entry { rule: 0, .. })));
    world.compiler.set_pod(&pod("b", "late", "", 1));
    world.compiler.remove_cluster_policy("deny");
    assert_eq!(reason(&world, 2, 1, 80).reason, Reason::TwoPods);
    // Two pods of another node have one address: one is a peer, the other one has the port.
    let to_http = rule(&[spaces("team=c")], &[port_named("TCP", "http")]);
    let out = only(policy("b", "out", "", &[], &[to_http]), "Egress");
    world.compiler.set_policy(out.clone());
    let twin = named(pod("b", "twin", "", 3), "http", Protocol::Tcp, 80);
    world.compiler.set_pod(&Pod { local: false, ..twin });
    let why = why(world.compiler.cluster(), address(2), address(3), 80, TCP).egress;
    assert_eq!(why.reason, Reason::NothingAllows(vec![Missed { policy: &out, entries: vec![Miss::Pair] }]));
}

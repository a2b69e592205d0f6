//! The walk through the encoded rules agrees with the judge, on random clusters, in each direction.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;

use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::{Element, Expr, Value, Verdict};
use ferrule_node_policy::judge::{Decision, Packet as Judged, judge};
use ferrule_node_policy::model::*;
use ferrule_node_policy::ruleset::{Contents, Entry};
use ferrule_node_policy::{Compiler, Name, Ruleset};
use ferrule_policy_kit::ruled::{self, Cause};
use ferrule_policy_kit::walk::{Packet, Rule as Steps, Set, Step, Tables, Walk, walk};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{encode, layout};

/// The table that the kernel would have.
struct Encoded<'r> {
    ruleset: &'r Ruleset,
    fixed: BTreeMap<String, Vec<Vec<Expr>>>,
    rules: BTreeMap<String, Rc<[Steps]>>,
    sets: BTreeMap<String, Rc<Set>>,
}

impl Encoded<'_> {
    fn of(ruleset: &Ruleset) -> Encoded<'_> {
        let fixed = layout::chains().into_iter().map(|chain| (chain.name, chain.rules)).collect();
        Encoded { ruleset, fixed, rules: BTreeMap::new(), sets: BTreeMap::new() }
    }

    /// The elements of the fixed sets and maps.
    fn fixed(&self, name: &str) -> Vec<Element> {
        let pods = || self.ruleset.maps.iter();
        let mut found = Vec::new();
        for of in IpFamily::ALL {
            let own = |entry: &Entry| IpFamily::of(entry.pod) == of;
            for (entry, chain) in pods().filter(|(entry, _)| own(entry)) {
                let key = octets(entry.pod);
                if name == layout::map(entry.direction, of) {
                    let value = Some(Value::Verdict(Verdict::Jump(chain.to_string())));
                    found.push(Element { value, ..Element::new(key) });
                } else if name == layout::isolated(of) {
                    found.push(Element::new(key));
                } else if name == layout::to_itself(of) {
                    found.push(Element::new(key.repeat(2)));
                }
            }
        }
        found
    }
}

impl Tables for Encoded<'_> {
    type Error = Infallible;

    fn rules(&mut self, chain: &str) -> Result<Rc<[Steps]>, Infallible> {
        let Encoded { ruleset, fixed, rules, .. } = self;
        let make = || {
            let found = match chain.parse::<Name>() {
                Ok(name) => ruleset.chains.get(&name).map(encode::rules).unwrap_or_default(),
                Err(_) => fixed.get(chain).cloned().unwrap_or_default(),
            };
            found.into_iter().map(|rule| rule.into_iter().map(Step::Known).collect()).collect()
        };
        Ok(Rc::clone(rules.entry(chain.to_owned()).or_insert_with(make)))
    }

    fn set(&mut self, name: &str) -> Result<Rc<Set>, Infallible> {
        if let Some(known) = self.sets.get(name) {
            return Ok(Rc::clone(known));
        }
        let of_rules = |set: &ferrule_node_policy::ruleset::Set| {
            Set::of(&encode::elements(set), matches!(set.contents, Contents::Blocks(_)))
        };
        let found = Rc::new(match name.parse::<Name>() {
            Ok(name) => self.ruleset.sets.get(&name).map(of_rules).unwrap_or_default(),
            Err(_) => Set::of(&self.fixed(name), false),
        });
        self.sets.insert(name.to_owned(), Rc::clone(&found));
        Ok(found)
    }
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[xy]", "[12]", 0..=2)
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    prop::collection::btree_map("[xy]", "[12]", 0..=1)
        .prop_map(|labels| LabelSelector { labels, expressions: Vec::new() })
}

fn a_pod() -> impl Strategy<Value = Pod> {
    let port = (prop::sample::select(vec!["web", "dns"]), 1..4_u16).prop_map(|(name, port)| NamedPort {
        name: name.into(),
        protocol: Protocol::Tcp,
        port,
    });
    ("[ab]", "[s-v]", labels(), 1..6_u8, prop::bool::weighted(0.7), vec(port, 0..=1)).prop_map(
        |(namespace, name, labels, last, local, ports)| {
            let v6 = Some([0xfd00, 0, 0, 0, 0, 0, 0, last.into()].into());
            let addresses = Addresses { v4: Some([10, 0, 0, last].into()), v6 };
            Pod { namespace, name, labels, addresses, ports, local, ..Pod::default() }
        },
    )
}

fn peer() -> impl Strategy<Value = Peer> {
    const CIDRS: [&str; 5] = ["10.0.0.0/30", "10.0.0.3/32", "0.0.0.0/0", "fd00::2/127", "::/0"];
    let block = (prop::sample::select(&CIDRS[..]), prop::option::of(prop::sample::select(&CIDRS[..])));
    prop_oneof![
        3 => (prop::option::of(selector()), prop::option::of(selector()))
            .prop_map(|(pods, namespaces)| Peer { pods, namespaces, ..Peer::default() }),
        1 => block.prop_map(|(cidr, except)| {
            let except = except.into_iter().map(str::to_owned).collect();
            Peer { block: Some(IpBlock { cidr: cidr.into(), except }), ..Peer::default() }
        }),
    ]
}

fn a_rule() -> impl Strategy<Value = Rule> {
    let value = prop_oneof![
        2 => (1..4_i32).prop_map(PortValue::Number),
        1 => prop::sample::select(vec!["web", "dns"]).prop_map(|name| PortValue::Name(name.into())),
    ];
    let protocol = prop::sample::select(vec![None, Some("UDP"), Some("SCTP")]);
    let port = (protocol, prop::option::of(value), prop::option::weighted(0.2, 2..5_i32)).prop_map(
        |(protocol, port, end_port)| Port {
            protocol: protocol.map(str::to_owned),
            port,
            end_port,
            unread: None,
        },
    );
    (vec(peer(), 0..=2), vec(port, 0..=2)).prop_map(|(peers, ports)| Rule { peers, ports })
}

fn a_policy() -> impl Strategy<Value = NetworkPolicy> {
    let types = vec(prop::sample::select(vec!["Ingress", "Egress"]), 0..=2);
    ("[ab]", "[pqr]", selector(), types, vec(a_rule(), 0..=2), vec(a_rule(), 0..=2)).prop_map(
        |(namespace, name, pods, types, ingress, egress)| {
            let types = types.into_iter().map(str::to_owned).collect();
            NetworkPolicy { namespace, name, pods, types, ingress, egress, unread: None }
        },
    )
}

fn cluster_policy() -> impl Strategy<Value = ClusterNetworkPolicy> {
    let action = prop::sample::select(vec!["Accept", "Deny", "Pass"]);
    let subject =
        || (selector(), selector()).prop_map(|(namespaces, pods)| NamespacedPods { namespaces, pods });
    let rule = move || {
        (action.clone(), subject().prop_map(ClusterPeer::Pods), 1..4_i32).prop_map(|(action, peer, port)| {
            let protocols = vec![ClusterProtocol::Ports { protocol: Protocol::Tcp, first: port, last: port }];
            ClusterRule { name: String::new(), action: action.into(), peers: vec![peer], protocols }
        })
    };
    let tier = prop::sample::select(vec!["Admin", "Baseline"]);
    ("[kl]", tier, subject(), vec(rule(), 0..=2), vec(rule(), 0..=2)).prop_map(
        |(name, tier, subject, ingress, egress)| {
            let subject = ClusterSubject::Pods(subject);
            ClusterNetworkPolicy { name, tier: tier.into(), priority: 0, subject, ingress, egress }
        },
    )
}

fn agrees(compiler: &Compiler, tables: &mut Encoded<'_>, packet: &Judged) {
    let verdict = judge(compiler.cluster(), packet);
    let Judged { source, destination, protocol, destination_port: port } = *packet;
    let walked = Packet { source, destination, protocol, port, input: Some("veth0".to_owned()) };
    let Ok(decided) = walk(tables, "forward", &walked);
    let ruled = ruled::judge(&Walk::default(), &decided, &walked);
    assert_eq!(ruled.allowed, Some(verdict.is_allowed()), "{packet:?} {verdict:?} {ruled:?}");
    let sides =
        [(Direction::Egress, &verdict.egress, source), (Direction::Ingress, &verdict.ingress, destination)];
    if let Some((direction, ..)) = sides.iter().find(|(_, decision, _)| !decision.is_allowed()) {
        assert_eq!((ruled.cause, ruled.direction), (Cause::Policy, Some(*direction)), "{packet:?} {ruled:?}");
    }
    let has_rules = |direction: Direction| ruled.passed.iter().any(|passed| passed.direction == direction);
    for (direction, decision, pod) in sides.into_iter().filter(|_| ruled.allowed == Some(true)) {
        let is_itself = source == destination;
        let is_isolated = !is_itself && compiler.ruleset().maps.contains_key(&Entry { direction, pod });
        assert_eq!(has_rules(direction), is_isolated, "{packet:?} {ruled:?}");
        assert!(is_isolated || !matches!(decision, Decision::Allowed(_)), "{packet:?} {ruled:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_walk_agrees_with_the_judge(
        pods in vec(a_pod(), 0..8),
        policies in vec(a_policy(), 0..5),
        cluster_policies in vec(cluster_policy(), 0..=2),
        spaces in vec(("[ab]", labels()), 0..=2),
    ) {
        let mut compiler = Compiler::default();
        spaces.into_iter().for_each(|(name, labels)| compiler.set_namespace(&Namespace { name, labels, mode: None }));
        pods.iter().for_each(|pod| compiler.set_pod(pod));
        policies.into_iter().for_each(|policy| compiler.set_policy(policy));
        cluster_policies.into_iter().for_each(|policy| compiler.set_cluster_policy(policy));
        let _ = compiler.update();
        let mut tables = Encoded::of(compiler.ruleset());
        for (from, to) in (1..6_u8).flat_map(|from| (1..7_u8).map(move |to| (from, to))) {
            let v4 = |last| IpAddr::from([10, 0, 0, last]);
            let v6 = |last: u8| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)]);
            for (source, destination) in [(v4(from), v4(to)), (v6(from), v6(to))] {
                let icmp = if source.is_ipv4() { 1 } else { 58 };
                for (protocol, destination_port) in [(6, 1), (6, 3), (17, 2), (132, 1), (icmp, 0)] {
                    agrees(&compiler, &mut tables, &Judged { source, destination, protocol, destination_port });
                }
            }
        }
    }
}

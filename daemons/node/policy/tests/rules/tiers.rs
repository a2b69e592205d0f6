//! ClusterNetworkPolicies: tiers, priorities, actions, and rules with an error.

use ferrule_node_policy::judge::{Decision, Packet, judge};
use ferrule_node_policy::model::*;

use crate::kit::*;

/// Pods 1 and 2 in `a` (app=web, app=db), 3 in `b` (app=web), 4 in `c` (app=other).
fn of(policies: &[NetworkPolicy], cluster_policies: &[ClusterNetworkPolicy]) -> World {
    let pods = [
        named(pod("a", "web", "app=web", 1), "http", Protocol::Tcp, 8080),
        named(pod("a", "db", "app=db", 2), "sql", Protocol::Udp, 5432),
        named(pod("b", "web", "app=web", 3), "http", Protocol::Tcp, 80),
        pod("c", "other", "app=other", 4),
    ];
    let mut world = World::of(&pods, policies);
    cluster_policies.iter().for_each(|policy| world.compiler.set_cluster_policy(policy.clone()));
    world.update();
    world
}

fn in_spaces(text: &str) -> NamespacedPods {
    NamespacedPods { namespaces: select(text), pods: LabelSelector::default() }
}

fn peer(text: &str) -> ClusterPeer {
    ClusterPeer::Pods(in_spaces(text))
}

fn cluster_rule(action: &str, peers: &[ClusterPeer]) -> ClusterRule {
    ClusterRule { action: action.into(), peers: peers.to_vec(), ..ClusterRule::default() }
}

fn tcp(first: i32, last: i32) -> ClusterProtocol {
    ClusterProtocol::Ports { protocol: Protocol::Tcp, first, last }
}

/// For the pods of the namespace `a`.
fn admin(name: &str, priority: i32, ingress: &[ClusterRule], egress: &[ClusterRule]) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy {
        name: name.into(),
        tier: "Admin".into(),
        priority,
        subject: ClusterSubject::Pods(in_spaces("team=a")),
        ingress: ingress.to_vec(),
        egress: egress.to_vec(),
    }
}

fn baseline(policy: ClusterNetworkPolicy) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy { tier: "Baseline".into(), ..policy }
}

/// The pods that reach pod 1 by TCP.
fn reach(world: &World) -> Vec<u8> {
    (2..=5).filter(|from| world.passes(*from, 1, TCP, 80)).collect()
}

#[test]
fn each_tier_decides_for_those_behind_it() {
    let from_b = |name: &str, action: &str| admin(name, 5, &[cluster_rule(action, &[peer("team=b")])], &[]);
    let allow_b = policy("a", "np", "", &[rule(&[spaces("team=b")], &[])], &[all()]);
    let allow_none = only(policy("a", "np", "", &[], &[]), "Ingress");
    let nothing: Option<&str> = None;
    for (first, network_policy, last, expected) in [
        (nothing, None, None, true),
        (Some("Accept"), None, None, true),
        (Some("Deny"), None, None, false),
        (Some("Pass"), None, None, true),
        (Some("Accept"), Some(&allow_none), Some("Deny"), true),
        (Some("Deny"), Some(&allow_b), Some("Accept"), false),
        (Some("Pass"), Some(&allow_b), Some("Deny"), true),
        (Some("Pass"), Some(&allow_none), Some("Accept"), false),
        (None, Some(&allow_b), Some("Deny"), true),
        (None, Some(&allow_none), Some("Accept"), false),
        (Some("Pass"), None, Some("Deny"), false),
        (Some("Pass"), None, Some("Accept"), true),
        (Some("Pass"), None, Some("Pass"), true),
        (None, None, Some("Deny"), false),
    ] {
        let network_policies: Vec<_> = network_policy.into_iter().cloned().collect();
        let tiers = [
            first.map(|action| from_b("first", action)),
            last.map(|action| baseline(from_b("last", action))),
        ];
        let tiers: Vec<_> = tiers.into_iter().flatten().collect();
        let world = of(&network_policies, &tiers);
        assert_eq!(world.passes(3, 1, TCP, 80), expected, "{first:?} {network_policy:?} {last:?}");
        // The rules name no other pod, and no egress.
        assert_eq!(world.passes(4, 1, TCP, 80), network_policy.is_none(), "{first:?} {last:?}");
        assert!(world.passes(1, 4, TCP, 80));
    }
}

#[test]
fn the_lowest_priority_and_the_first_rule_decide() {
    let deny_all = |priority| admin("deny", priority, &[cluster_rule("Deny", &[peer("")])], &[]);
    let accept_b = |priority| admin("accept", priority, &[cluster_rule("Accept", &[peer("team=b")])], &[]);
    assert_eq!(reach(&of(&[], &[deny_all(1), accept_b(2)])), [5]);
    assert_eq!(reach(&of(&[], &[deny_all(2), accept_b(1)])), [3, 5]);
    // Of one priority: in the order of the names.
    assert_eq!(reach(&of(&[], &[deny_all(1), accept_b(1)])), [3, 5]);
    let both = |actions: [&str; 2]| {
        let rules = [cluster_rule(actions[0], &[peer("team=b")]), cluster_rule(actions[1], &[peer("")])];
        of(&[], &[admin("both", 0, &rules, &[])])
    };
    assert_eq!(reach(&both(["Accept", "Deny"])), [3, 5]);
    assert_eq!(reach(&both(["Deny", "Accept"])), [2, 4, 5]);
    // Pass skips the rest of its tier.
    assert_eq!(reach(&both(["Pass", "Deny"])), [3, 5]);
}

#[test]
fn subjects_peers_and_ports() {
    let mut web = admin(
        "web",
        0,
        &[],
        &[cluster_rule("Deny", &[ClusterPeer::Networks(vec!["10.0.0.0/30".into(), "fd00::/126".into()])])],
    );
    web.subject = ClusterSubject::Pods(NamespacedPods { namespaces: select(""), pods: select("app=web") });
    let world = of(&[], &[web.clone()]);
    assert!(!world.passes(1, 2, TCP, 80) && !world.passes(3, 2, ICMP, 0), "networks name pods, too");
    assert!(world.passes(1, 4, TCP, 80) && world.passes(2, 1, TCP, 80));
    web.egress[0].peers =
        vec![ClusterPeer::Pods(NamespacedPods { namespaces: select("team=a"), pods: select("app=db") })];
    web.egress[0].protocols = vec![tcp(80, 80), tcp(90, 99)];
    let world = of(&[], &[web.clone()]);
    assert!(!world.passes(1, 2, TCP, 80) && !world.passes(3, 2, TCP, 95) && world.passes(3, 1, TCP, 80));
    assert!(world.passes(1, 2, TCP, 81) && world.passes(1, 2, UDP, 80) && world.passes(1, 2, ICMP, 0));
    // A port by its name is of each protocol, and that of the pod that gets the packet.
    web.egress[0].protocols = vec![ClusterProtocol::Named("sql".into())];
    let world = of(&[], &[web.clone()]);
    assert!(!world.passes(1, 2, UDP, 5432) && world.passes(1, 2, TCP, 5432) && world.passes(1, 2, UDP, 80));
    let to_http = ClusterRule {
        protocols: vec![ClusterProtocol::Named("http".into())],
        ..cluster_rule("Deny", &[peer("")])
    };
    let world = of(&[], &[admin("in", 0, &[to_http], &[])]);
    assert!(!world.passes(3, 1, TCP, 8080) && world.passes(3, 1, TCP, 80) && world.passes(3, 2, TCP, 8080));
}

#[test]
fn what_is_not_understood_fails_closed() {
    let unknown = || ClusterPeer::Unknown("peer \"nodes\" is not known".into());
    let bad_selector =
        NamespacedPods { namespaces: expression("team", "Like", &["a"]), ..NamespacedPods::default() };
    let networks = |cidr: &str| ClusterPeer::Networks(vec![cidr.into()]);
    let with = |protocol| ClusterRule { protocols: vec![protocol], ..cluster_rule("", &[peer("team=b")]) };
    for (bad, fault) in [
        (cluster_rule("", &[peer("team=b"), unknown()]), "peer 1: peer \"nodes\" is not known"),
        (cluster_rule("", &[]), "no peer"),
        (cluster_rule("", &[ClusterPeer::Pods(bad_selector.clone())]), "the operator \"Like\" is not known"),
        (cluster_rule("", &[networks("10.0.0.0/8")]), "networks are no peer here"),
        (with(ClusterProtocol::Unknown("protocol \"icmp\"".into())), "protocol 0: protocol \"icmp\""),
        (with(tcp(0, 1)), "0 is no port"),
        (with(tcp(90, 80)), "the range ends at 80, below 90"),
    ] {
        for (action, others) in [("Accept", vec![2, 3, 4, 5]), ("Deny", vec![]), ("Pass", vec![])] {
            let bad = ClusterRule { action: action.into(), ..bad.clone() };
            let world = of(&[], &[admin("bad", 0, &[bad], &[])]);
            assert_eq!(reach(&world), others, "{action} {fault}");
            assert!(
                world.faults()[0].starts_with("/bad: ingress[0]: ") && world.faults()[0].contains(fault),
                "{:?}",
                world.faults()
            );
            assert!(world.passes(1, 3, TCP, 80) && world.passes(1, 2, TCP, 80) == (action == "Accept"));
        }
    }
    let bad_networks = cluster_rule("Deny", &[networks("10.0.0.0/x")]);
    let world = of(&[], &[admin("bad", 0, &[], &[bad_networks])]);
    assert!(!world.passes(1, 9, TCP, 80) && world.passes(9, 1, TCP, 80));
    let odd = admin("odd", 0, &[cluster_rule("Log", &[peer("team=b")])], &[]);
    assert_eq!(reach(&of(&[], &[odd])), [0; 0], "an action");
    // A policy as a whole: its rules of each direction.
    let rules = [cluster_rule("Deny", &[peer("team=b")])];
    let mut whole = admin("whole", 0, &rules, &[]);
    whole.tier = "Later".into();
    assert_eq!(reach(&of(&[], &[whole])), [0; 0], "a tier");
    let mut whole = admin("whole", 0, &rules, &[]);
    for subject in [ClusterSubject::Unknown("no subject".into()), ClusterSubject::Pods(bad_selector)] {
        whole.subject = subject;
        let world = of(&[], &[whole.clone()]);
        assert!(!world.passes(9, 4, TCP, 80) && world.passes(4, 9, TCP, 80), "a subject: it is for all pods");
        assert!(world.faults()[0].contains("it is for all pods"), "{:?}", world.faults());
    }
    let peers: Vec<_> = (0..200).map(|number| peer(&format!("team={number}"))).collect();
    let wide = ClusterRule {
        protocols: (1..=100).map(|port| tcp(port, port)).collect(),
        ..cluster_rule("Accept", &peers)
    };
    let world = of(&[], &[admin("wide", 0, &[wide, cluster_rule("Deny", &[peer("team=b")])], &[])]);
    assert!(
        world.faults()[0].contains("ingress[0]: more than 10000 pairs")
            && world.faults()[1].contains("ingress[1]")
    );
    assert_eq!(reach(&world), [0; 0]);
}

/// The owner of a pod chooses its labels, but not its namespace.
#[test]
fn a_peer_whose_labels_cannot_be_read_is_denied_what_its_namespace_is() {
    for local in [true, false] {
        for (peers, action, expected) in [
            ("team=b", "Deny", [false, true]),
            ("team=c", "Deny", [true, true]),
            ("team=b", "Pass", [false, false]),
            ("team=b", "Accept", [false, false]),
        ] {
            let mut rules = vec![cluster_rule(action, &[peer(peers)])];
            if action != "Deny" {
                rules.push(cluster_rule("Deny", &[peer("")]));
            }
            let mut world = of(&[], &[admin("p", 0, &rules, &[])]);
            world.compiler.set_pod(&Pod {
                unread: Some("too many labels".to_owned()),
                local,
                labels: labels(""),
                ..pod("b", "far", "", 7)
            });
            world.update();
            // One of this node has no traffic at all.
            assert_eq!(world.passes(7, 1, TCP, 80), expected[0] && !local, "{action} {peers} {local}");
            assert!(world.passes(5, 1, TCP, 80), "no pod has this address");
            world.compiler.set_pod(&Pod { local, ..pod("b", "far", "", 7) });
            world.update();
            assert_eq!(world.passes(7, 1, TCP, 80), action != "Deny" || peers == "team=c", "{action}");
        }
    }
}

#[test]
fn one_name_decides_and_is_said() {
    let world = of(
        &[],
        &[
            admin("no", 0, &[cluster_rule("Deny", &[peer("team=b")])], &[]),
            admin("yes", 1, &[cluster_rule("Accept", &[peer("")])], &[]),
        ],
    );
    let verdict = |from: u8| {
        let [source, destination] = [from, 1].map(|last| addresses(last).v4.unwrap().into());
        judge(world.compiler.cluster(), &Packet { source, destination, protocol: TCP, destination_port: 80 })
            .ingress
    };
    assert!(matches!(verdict(3), Decision::Refused(by) if by.name == "no"));
    assert!(matches!(verdict(4), Decision::Accepted(by) if by.name == "yes"));
    assert_eq!(verdict(5), Decision::NotIsolated);
}

#[test]
fn the_plugin_learns_the_namespaces_that_may_be_denied() {
    let mut policy = admin("deny", 0, &[cluster_rule("Deny", &[peer("")])], &[]);
    let isolated = |world: &World| {
        let all: Vec<_> = ["a", "b", "new"].map(|name| world.isolates(name, Direction::Ingress)).into();
        assert!(!world.isolates("a", Direction::Egress) && !world.isolates("new", Direction::Egress));
        all
    };
    // Any new namespace may get the label.
    let world = of(&[], &[policy.clone()]);
    assert_eq!(isolated(&world), [true, false, true]);
    assert_eq!(world.compiler.isolated()["b"], Directions::default(), "it is known, and named");
    policy.subject = ClusterSubject::Pods(NamespacedPods {
        namespaces: expression("kubernetes.io/metadata.name", "In", &["new", "c"]),
        ..NamespacedPods::default()
    });
    let mut world = of(&[], &[policy.clone()]);
    assert_eq!((isolated(&world), world.compiler.isolated().len()), (vec![false, false, true], 1));
    world.compiler.set_namespace(&Namespace { name: "new".into(), labels: labels(""), mode: None });
    assert_eq!(isolated(&world), [false; 3], "its labels are known");
    policy.subject = ClusterSubject::Pods(NamespacedPods {
        namespaces: expression("kubernetes.io/metadata.name", "NotIn", &["a"]),
        ..NamespacedPods::default()
    });
    assert_eq!(isolated(&of(&[], &[policy.clone()])), [true, true, true], "no namespace here has this label");
    // Nothing that it says can deny.
    policy.ingress = vec![cluster_rule("Accept", &[peer("")]), cluster_rule("Pass", &[peer("team=b")])];
    policy.subject = ClusterSubject::default();
    assert_eq!(isolated(&of(&[], &[policy])), [false; 3]);
}

#[test]
fn a_change_touches_only_what_changes() {
    let deny = admin("deny", 0, &[cluster_rule("Deny", &[peer("team=b")])], &[]);
    let mut world = of(&[], std::slice::from_ref(&deny));
    assert_eq!((world.kernel.chains.len(), world.kernel.maps.len()), (2, 4));
    // A peer of a rule that denies comes: its flows may be denied now.
    world.compiler.set_pod(&Pod { local: false, ..pod("b", "late", "", 7) });
    let change = world.update();
    assert!(change.maps.is_empty() && change.denying.len() == 2);
    assert_eq!(change.tightened(), addresses(7).all().collect());
    // Another namespace gets the label of the subject, and loses it.
    world.compiler.set_namespace(&Namespace { name: "c".into(), labels: labels("team=a"), mode: None });
    let change = world.update();
    assert!(change.maps.len() == 2 && change.new_chains.is_empty() && !world.passes(3, 4, TCP, 80));
    assert_eq!(change.tightened(), addresses(4).all().collect());
    world.compiler.set_namespace(&Namespace { name: "c".into(), labels: labels("team=c"), mode: None });
    assert!(world.update().tightened().is_empty() && world.passes(3, 4, TCP, 80));
    // Other actions for the same peers are another chain.
    for actions in [["Accept", "Deny", "Deny"], ["Deny", "Accept", "Deny"]] {
        let rules = [("team=b", actions[0]), ("team=c", actions[1]), ("team=a", actions[2])];
        let rules = rules.map(|(peers, action)| cluster_rule(action, &[peer(peers)]));
        world.compiler.set_cluster_policy(admin("deny", 0, &rules, &[]));
        assert_eq!(world.update().new_chains.len(), 2);
        assert_eq!(world.passes(3, 1, TCP, 80), actions[0] == "Accept");
    }
    world.compiler.set_cluster_policy(deny);
    world.update();
    // A policy that cannot deny makes no chain, and one behind it has the chain that it had alone.
    world.compiler.set_cluster_policy(admin("accept", 1, &[cluster_rule("Accept", &[peer("")])], &[]));
    assert!(world.update().is_empty());
    world.compiler.set_policy(only(policy("a", "np", "", &[rule(&[pods("")], &[])], &[]), "Ingress"));
    world.update();
    world.compiler.retain_cluster_policies(|_| false);
    world.update();
    let alone = of(&[only(policy("a", "np", "", &[rule(&[pods("")], &[])], &[]), "Ingress")], &[]);
    assert_eq!(world.kernel.chains, alone.kernel.chains);
}

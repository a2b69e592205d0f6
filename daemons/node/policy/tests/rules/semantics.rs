//! One test for each sentence of the README's table.

use ferrule_node_policy::judge::{Decision, Packet, judge};
use ferrule_node_policy::model::*;

use crate::kit::*;

/// Pods 1 and 2 in `a` (app=web, app=db), 3 in `b` (app=web), 4 in `c` (app=other).
fn four() -> Vec<Pod> {
    vec![
        pod("a", "web", "app=web", 1),
        pod("a", "db", "app=db", 2),
        pod("b", "web", "app=web", 3),
        pod("c", "other", "app=other", 4),
    ]
}

fn of(policies: &[NetworkPolicy]) -> World {
    World::of(&four(), policies)
}

/// The pods that reach this one by TCP.
fn reach(world: &World, to: u8) -> Vec<u8> {
    (1..=9).filter(|from| *from != to && world.passes(*from, to, TCP, 80)).collect()
}

#[test]
fn without_a_policy_everything_passes() {
    let world = of(&[]);
    assert_eq!(reach(&world, 1), [2, 3, 4, 5, 6, 7, 8, 9]);
    assert!(world.kernel == Default::default() && world.compiler.isolated().is_empty());
}

#[test]
fn a_policy_without_rules_denies_all() {
    let world = of(&[only(policy("a", "deny", "", &[], &[]), "Ingress")]);
    assert_eq!(reach(&world, 1), [0; 0]);
    assert_eq!(reach(&world, 3), [1, 2, 4, 5, 6, 7, 8, 9]);
    assert!(world.passes(1, 9, TCP, 80) && !world.passes(9, 1, ICMP, 0));
    assert!(world.passes(1, 1, TCP, 80), "a pod reaches itself");
}

#[test]
fn policies_are_a_union() {
    let world = of(&[
        policy("a", "one", "app=web", &[rule(&[pods("app=db")], &[])], &[all()]),
        policy("a", "two", "", &[rule(&[spaces("team=c")], &[])], &[all()]),
    ]);
    assert_eq!(reach(&world, 1), [2, 4]);
    assert_eq!(reach(&world, 2), [4]);
}

#[test]
fn both_sides_must_allow() {
    let egress =
        only(policy("b", "out", "", &[], &[rule(&[spaces("team=a")], &[port("TCP", 80)])]), "Egress");
    let ingress = only(policy("a", "in", "app=web", &[rule(&[spaces("team=b")], &[])], &[]), "Ingress");
    let world = of(&[egress, ingress]);
    assert!(world.passes(3, 1, TCP, 80) && !world.passes(3, 1, TCP, 81) && !world.passes(3, 4, TCP, 80));
    assert!(!world.passes(2, 1, TCP, 80) && world.passes(3, 2, TCP, 80));
    let denied = Packet {
        source: [10, 0, 0, 3].into(),
        destination: [10, 0, 0, 1].into(),
        protocol: TCP,
        destination_port: 81,
    };
    let verdict = judge(world.compiler.cluster(), &denied);
    assert!(matches!(&verdict.egress, Decision::Denied(by) if by[0].name == "out"), "{verdict:?}");
    assert!(matches!(verdict.ingress, Decision::Allowed(by) if by.name == "in"), "{verdict:?}");
}

#[test]
fn policy_types_follow_the_api() {
    let named = |types: &[&str]| types.iter().map(|word| word.to_string()).collect();
    for (types, egress_rules, ingress, egress) in [
        (&[][..], &[][..], true, false),
        (&[], &[rule(&[], &[port("TCP", 1)])], true, true),
        (&["Egress"], &[], false, true),
        (&["Ingress"], &[rule(&[], &[port("TCP", 1)])], true, false),
        (&["Ingress", "Egress"], &[], true, true),
    ] {
        let mut one = policy("a", "types", "", &[], egress_rules);
        one.types = named(types);
        let world = of(&[one]);
        assert_eq!(
            (!world.passes(9, 1, TCP, 80), !world.passes(1, 9, TCP, 80)),
            (ingress, egress),
            "{types:?}"
        );
        assert_eq!(world.compiler.isolated().get("a"), Some(&Directions { ingress, egress }));
    }
}

#[test]
fn peers_are_pods_of_namespaces() {
    let both = Peer { pods: Some(select("app=web")), namespaces: Some(select("team=b")), ..Peer::default() };
    let not_a = Peer { namespaces: Some(expression("team", "NotIn", &["a"])), ..Peer::default() };
    let has_app = Peer { pods: Some(expression("app", "Exists", &[])), ..Peer::default() };
    let no_app = Peer { pods: Some(expression("app", "DoesNotExist", &[])), ..Peer::default() };
    let of_two = Peer {
        pods: Some(expression("app", "In", &["db", "other"])),
        namespaces: Some(select("")),
        ..Peer::default()
    };
    for (peers, expected) in [
        (vec![pods("app=web")], vec![1]),
        (vec![pods("")], vec![1]),
        (vec![spaces("")], vec![1, 3, 4]),
        (vec![both.clone()], vec![3]),
        (vec![pods("app=web"), spaces("team=b")], vec![1, 3]),
        (vec![not_a], vec![3, 4]),
        (vec![has_app], vec![1]),
        (vec![no_app], vec![]),
        (vec![of_two], vec![4]),
        (vec![spaces("team=none")], vec![]),
        (vec![], vec![1, 3, 4, 5, 6, 7, 8, 9]),
    ] {
        let world = of(&[policy("a", "one", "app=db", &[rule(&peers, &[])], &[])]);
        assert_eq!(reach(&world, 2), expected, "{peers:?}");
    }
}

#[test]
fn blocks_have_exceptions_and_name_pods_too() {
    let peers = [
        block("10.0.0.0/29", &["10.0.0.4/31", "10.0.0.1/32"]),
        block("fd00::/125", &["fd00::4/127", "fd00::1/128"]),
    ];
    let world = of(&[policy("a", "one", "app=db", &[rule(&peers, &[])], &[rule(&peers, &[])])]);
    assert_eq!(reach(&world, 2), [3, 6, 7]);
    assert!(world.passes(2, 3, TCP, 80) && !world.passes(2, 4, TCP, 80));
    // A block of one family says nothing of the other one, and a whole family needs no set.
    let world = of(&[policy("a", "one", "app=db", &[rule(&[block("0.0.0.0/0", &[])], &[])], &[])]);
    let v4 = Packet {
        source: [192, 0, 2, 1].into(),
        destination: [10, 0, 0, 2].into(),
        protocol: ICMP,
        destination_port: 0,
    };
    let v6 = Packet { source: "2001:db8::1".parse().unwrap(), destination: "fd00::2".parse().unwrap(), ..v4 };
    assert!(world.packet(&v4) && !world.packet(&v6) && world.kernel.sets.is_empty());
}

#[test]
fn ports_ranges_and_protocols() {
    let list = [
        port("TCP", 80),
        ports("UDP", 1000, 2000),
        every_port("SCTP"),
        Port { port: Some(PortValue::Number(7)), ..Port::default() },
    ];
    let world = of(&[policy("a", "one", "app=db", &[rule(&[], &list)], &[])]);
    for (protocol, number, passes) in [
        (TCP, 80, true),
        (TCP, 81, false),
        (UDP, 80, false),
        (TCP, 7, true),
        (UDP, 7, false),
        (UDP, 999, false),
        (UDP, 1000, true),
        (UDP, 2000, true),
        (UDP, 2001, false),
        (TCP, 1500, false),
        (SCTP, 1, true),
        (SCTP, 65535, true),
        (ICMP, 0, false),
        (47, 0, false),
    ] {
        assert_eq!(world.passes(1, 2, protocol, number), passes, "{protocol} {number}");
    }
}

#[test]
fn a_policy_for_sctp_isolates_and_opens_no_tcp() {
    let world = of(&[policy("a", "one", "app=db", &[rule(&[], &[port("SCTP", 80)])], &[])]);
    assert!(world.passes(1, 2, SCTP, 80) && !world.passes(1, 2, TCP, 80) && !world.passes(1, 2, UDP, 80));
}

#[test]
fn icmp_passes_rules_without_ports_only() {
    let world = of(&[policy(
        "a",
        "one",
        "app=db",
        &[rule(&[spaces("team=b")], &[]), rule(&[spaces("team=c")], &[every_port("TCP")])],
        &[],
    )]);
    assert!(world.passes(3, 2, ICMP, 0) && world.passes(3, 2, 47, 0));
    assert!(!world.passes(4, 2, ICMP, 0) && world.passes(4, 2, TCP, 9));
}

#[test]
fn a_named_port_is_that_of_the_pod_that_gets_the_packet() {
    let mut list = four();
    list[0] = named(list[0].clone(), "http", Protocol::Tcp, 8080);
    list[1] = named(named(list[1].clone(), "http", Protocol::Tcp, 80), "http", Protocol::Udp, 53);
    list[3] = named(list[3].clone(), "http", Protocol::Tcp, 9000);
    let http = port_named("TCP", "http");
    let world = World::of(
        &list,
        &[only(policy("a", "in", "", &[rule(&[], std::slice::from_ref(&http))], &[]), "Ingress")],
    );
    assert!(world.passes(3, 1, TCP, 8080) && !world.passes(3, 1, TCP, 80));
    assert!(world.passes(3, 2, TCP, 80) && !world.passes(3, 2, TCP, 8080) && !world.passes(3, 2, UDP, 53));
    // From the pod: of whichever pod it asks, among the peers of the rule.
    for (peer, other) in [
        (vec![], true),
        (vec![spaces("team=a")], false),
        (vec![block("10.0.0.0/30", &[]), block("fd00::/126", &[])], false),
    ] {
        let out = policy("b", "out", "", &[], &[rule(&peer, std::slice::from_ref(&http))]);
        let world = World::of(&list, &[only(out, "Egress")]);
        assert!(world.passes(3, 1, TCP, 8080) && !world.passes(3, 1, TCP, 80) && world.passes(3, 2, TCP, 80));
        assert_eq!(world.passes(3, 4, TCP, 9000), other, "{peer:?}");
        assert!(!world.passes(3, 9, TCP, 80), "no pod, no name");
    }
}

#[test]
fn pods_that_have_no_part() {
    let from_a = policy("a", "one", "app=db", &[rule(&[pods("app=web")], &[])], &[]);
    for change in [|pod: &mut Pod| pod.ended = true, |pod: &mut Pod| pod.host_network = true] {
        let mut list = four();
        change(&mut list[0]);
        assert_eq!(reach(&World::of(&list, std::slice::from_ref(&from_a)), 2), [0; 0], "no peer");
        change(&mut list[1]);
        assert!(
            World::of(&list, std::slice::from_ref(&from_a)).kernel.maps.is_empty(),
            "no policy is for it"
        );
    }
    let mut list = four();
    list[1].local = false;
    assert!(World::of(&list, &[from_a]).kernel.maps.is_empty(), "a pod of another node is isolated there");
}

#[test]
fn a_runtimes_uid_is_that_of_a_static_pod_or_of_its_mirror() {
    let mirror = Pod { mirror_of: Some("hash".into()), ..pod("a", "static", "", 5) };
    let world = World::of(&[mirror, pod("a", "web", "", 1)], &[]);
    let known = |name| world.compiler.cluster().pod("a", name).unwrap();
    assert!(
        known("static").is_uid("hash")
            && known("static").is_uid("uid-static")
            && !known("static").is_uid("uid-web")
    );
    assert!(known("web").is_uid("uid-web") && !known("web").is_uid("hash"));
}

#[test]
fn an_address_of_two_pods_gets_what_is_sure() {
    let deny = only(policy("a", "one", "app=web", &[rule(&[pods("app=db")], &[])], &[]), "Ingress");
    let mut list = four();
    list.push(pod("b", "late", "app=late", 1));
    let mut world = World::of(&list, &[deny]);
    assert_eq!(reach(&world, 1), [0; 0]);
    assert!(world.passes(1, 9, TCP, 80));
    world.compiler.set_addresses("b", "late", addresses(6));
    world.update();
    assert_eq!(reach(&world, 1), [2]);
    world.compiler.set_addresses("b", "late", addresses(1));
    world.compiler.remove_pod("a", "web");
    world.update();
    assert!(world.kernel.maps.is_empty());
}

#[test]
fn a_namespace_that_is_not_known_is_any_only_for_the_empty_selector() {
    let ghost = pod("ghost", "pod", "", 8);
    let not_a = Peer { namespaces: Some(expression("team", "NotIn", &["a"])), ..Peer::default() };
    let mut list = four();
    list.push(ghost);
    assert_eq!(
        reach(&World::of(&list, &[policy("a", "one", "app=db", &[rule(&[not_a], &[])], &[])]), 2),
        [3, 4]
    );
    assert_eq!(
        reach(&World::of(&list, &[policy("a", "one", "app=db", &[rule(&[spaces("")], &[])], &[])]), 2),
        [1, 3, 4, 8]
    );
}

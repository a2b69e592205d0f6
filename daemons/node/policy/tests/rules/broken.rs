//! Policies that say something that is not understood: they isolate, that part allows nothing, and it is reported.

use ferrule_node_policy::model::*;

use crate::kit::*;

fn world(bad: NetworkPolicy) -> World {
    let pods = [pod("a", "web", "app=web", 1), pod("a", "db", "app=db", 2), pod("b", "web", "app=web", 3)];
    let good = policy("b", "good", "", &[rule(&[spaces("team=a")], &[])], &[all()]);
    World::of(&pods, &[bad, good])
}

#[test]
fn one_bad_part_allows_nothing_and_the_rest_holds() {
    let web = &[pods("app=web")];
    let bad_peer = |selector| Peer { pods: Some(selector), ..Peer::default() };
    let rows: Vec<(Rule, &str)> = vec![
        (rule(&[block("10.0.0/8", &[])], &[]), "ingress[0], peer 0: \"10.0.0/8\" is no CIDR"),
        (rule(&[block("10.0.0.0/8", &["\n"])], &[]), "ingress[0], peer 0: \"\\n\" is no CIDR"),
        (
            rule(&[block("0.0.0.0/0", &["fd00::/8"])], &[]),
            "ingress[0], peer 0: \"fd00::/8\" is not of the family of \"0.0.0.0/0\"",
        ),
        (rule(&[bad_peer(expression("app", "Like", &["web"]))], &[]), "the operator \"Like\" is not known"),
        (rule(&[bad_peer(expression("app", "In", &[]))], &[]), "In of \"app\" has 0 values"),
        (rule(&[bad_peer(expression("app", "Exists", &["web"]))], &[]), "Exists of \"app\" has 1 values"),
        (rule(&[Peer::default()], &[]), "no peer"),
        (
            rule(&[Peer { pods: Some(select("")), ..block("0.0.0.0/0", &[]) }], &[]),
            "ipBlock beside a selector",
        ),
        (rule(web, &[every_port("ICMP")]), "ingress[0], port 0: the protocol \"ICMP\" is not known"),
        (rule(web, &[every_port("tcp")]), "the protocol \"tcp\" is not known"),
        (rule(web, &[port("TCP", 0)]), "0 is no port"),
        (rule(web, &[port("TCP", 65536)]), "65536 is no port"),
        (rule(web, &[ports("TCP", 80, 79)]), "endPort 79 is below 80"),
        (rule(web, &[ports("TCP", 1, -1)]), "-1 is no port"),
        (
            rule(web, &[Port { end_port: Some(80), ..every_port("TCP") }]),
            "endPort 80 without the number of a port",
        ),
        (
            rule(web, &[Port { end_port: Some(80), ..port_named("TCP", "http") }]),
            "endPort 80 without the number of a port",
        ),
    ];
    for (bad, fault) in rows {
        let alone = world(policy("a", "bad", "app=db", std::slice::from_ref(&bad), &[all()]));
        assert_eq!(alone.faults().len(), 1, "{bad:?}");
        assert!(
            alone.faults()[0].starts_with("a/bad: ") && alone.faults()[0].contains(fault),
            "{:?}",
            alone.faults()
        );
        assert!((0..=9).all(|from| from == 2 || !alone.passes(from, 2, TCP, 80)), "{bad:?}");
        assert!(alone.passes(1, 3, TCP, 80) && !alone.passes(9, 3, TCP, 80), "the other policy holds");
        let beside = world(policy(
            "a",
            "bad",
            "app=db",
            &[bad.clone(), rule(&[pods("app=web")], &[port("TCP", 443)])],
            &[all()],
        ));
        assert!(beside.passes(1, 2, TCP, 443) && !beside.passes(1, 2, TCP, 80), "{bad:?}");
    }
}

#[test]
fn a_selector_of_pods_that_is_not_understood_isolates_the_namespace() {
    let mut bad = policy("a", "bad", "", &[all()], &[all()]);
    bad.pods = expression("app", "Like", &["db"]);
    let world = world(bad);
    assert!(!world.passes(1, 2, TCP, 80) && !world.passes(9, 1, TCP, 80) && !world.passes(1, 9, TCP, 80));
    assert!(world.faults()[0].contains("podSelector"));
}

#[test]
fn what_could_not_be_read_allows_nothing() {
    let unread = || Some("x is not known".to_owned());
    let web = pods("app=web");
    for bad in [
        rule(&[Peer { unread: unread(), ..Peer::default() }], &[]),
        rule(&[Peer { unread: unread(), ..web.clone() }], &[]),
        rule(std::slice::from_ref(&web), &[Port { unread: unread(), ..every_port("TCP") }]),
    ] {
        let world = world(policy("a", "bad", "app=db", &[bad], &[all()]));
        assert!(!world.passes(1, 2, TCP, 80) && world.passes(2, 1, TCP, 80));
        assert!(world.faults()[0].ends_with("x is not known: it allows nothing"), "{:?}", world.faults());
    }
    let whole = policy("a", "bad", "app=db", &[all()], &[all()]);
    let world = world(only(NetworkPolicy { unread: unread(), ..whole }, "Ingress"));
    assert!(!world.passes(1, 2, TCP, 80) && !world.passes(2, 1, TCP, 80) && world.passes(9, 1, TCP, 80));
    assert_eq!(world.compiler.isolated()["a"], Directions::BOTH);
    assert!(world.faults()[0].starts_with("a/bad: x is not known: it isolates"));
}

#[test]
fn a_pod_that_cannot_be_read_any_more_is_closed() {
    let mut world = World::of(
        &[pod("a", "web", "app=web", 1), pod("a", "db", "app=db", 2), pod("b", "web", "app=web", 3)],
        &[
            policy("a", "db", "app=db", &[rule(&[pods("app=web"), spaces("")], &[])], &[all()]),
            only(policy("b", "web", "app=web", &[rule(&[spaces("")], &[])], &[]), "Ingress"),
        ],
    );
    assert!(world.passes(1, 2, TCP, 80) && world.passes(1, 3, TCP, 80) && world.passes(9, 1, TCP, 80));
    world.compiler.close_pod("a", "web");
    world.compiler.close_pod("a", "unknown");
    world.update();
    assert!(!world.passes(9, 1, TCP, 80) && !world.passes(1, 9, TCP, 80), "whatever its labels are now");
    assert!(world.passes(2, 3, TCP, 80), "others stay");
    assert!(!world.passes(1, 3, TCP, 80), "it is nobody's peer");
    world.compiler.set_pod(&pod("a", "web", "app=web", 1));
    world.update();
    assert!(world.passes(9, 1, TCP, 80) && world.passes(1, 2, TCP, 80) && world.passes(1, 3, TCP, 80));
    // One that was never read may be anywhere.
    assert_eq!(Vec::from_iter(world.compiler.unread_pods()), [("a", "unknown")]);
    world.compiler.set_pod(&Pod { local: false, ..pod("a", "unknown", "", 5) });
    assert_eq!(world.compiler.unread_pods().count(), 0);
    world.compiler.close_pod("a", "again");
    world.compiler.retain_pods(|_, name| name != "again" && name != "unknown");
    assert_eq!(world.compiler.unread_pods().count(), 0);
    // A pod of another node.
    world.compiler.set_pod(&Pod { local: false, ..pod("b", "far", "app=web", 4) });
    world.update();
    assert!(world.passes(4, 2, TCP, 80));
    world.compiler.close_pod("b", "far");
    world.update();
    assert!(!world.passes(4, 2, TCP, 80));
}

#[test]
fn a_pod_whose_labels_were_never_read_is_closed() {
    let unread = |namespace, last| Pod { unread: Some("too long".into()), ..pod(namespace, "x", "", last) };
    let from_all = rule(&[spaces("")], &[]);
    let db = only(policy("a", "db", "app=db", &[from_all], &[]), "Ingress");
    let pods = [
        unread("a", 1),
        pod("a", "db", "app=db", 2),
        unread("b", 3),
        Pod { local: false, name: "far".into(), ..unread("a", 4) },
    ];
    let world = World::of(&pods, &[db]);
    assert!(!world.passes(9, 1, TCP, 80) && world.passes(1, 9, TCP, 80), "the policy may be for it");
    assert!(!world.passes(1, 2, TCP, 80) && !world.passes(3, 2, TCP, 80), "it is nobody's peer");
    assert!(world.passes(9, 3, TCP, 80), "its namespace has no policies");
    let closed: Vec<_> = world.compiler.cluster().closed_pods().collect();
    assert_eq!(closed, [("a", "x"), ("b", "x")]);
}

#[test]
fn a_type_that_is_not_known_isolates_in_both_directions() {
    let world = world(only(policy("a", "bad", "app=db", &[all()], &[]), "Forward"));
    assert!(world.passes(1, 2, TCP, 80) && !world.passes(2, 1, TCP, 80));
    assert_eq!(world.compiler.isolated()["a"], Directions::BOTH);
    assert!(world.faults()[0].contains("\"Forward\""));
}

#[test]
fn peers_times_ports_are_bounded() {
    let peers: Vec<_> = (0..200).map(|number| pods(&format!("app={number}"))).collect();
    let list: Vec<_> = (1..=100).map(|number| port("TCP", number)).collect();
    let first = rule(&[pods("app=web")], &[]);
    let world = world(policy("a", "bad", "app=db", &[first, rule(&peers, &list)], &[all()]));
    assert!(world.passes(1, 2, TCP, 80));
    assert!(world.faults()[0].contains("ingress[1]: more than 10000 pairs"));
    assert!(world.kernel.chains.values().all(|chain| chain.rules.len() < 3));
}

//! Policies that are understood, and probably a mistake.

use ferrule_node_policy::model::*;

use crate::kit::*;

const MANY: usize = 1000;

fn doubts(world: &World, looks: usize) -> Vec<String> {
    world
        .compiler
        .doubts(looks)
        .into_iter()
        .map(|one| format!("{}/{}: {}", one.namespace, one.policy, one.what))
        .collect()
}

fn far(pod: Pod) -> Pod {
    Pod { local: false, ..pod }
}

#[test]
fn a_named_port_that_no_pod_has() {
    let own = |name: &str| {
        only(policy("a", "own", "app=db", &[rule(&[], &[port_named("TCP", name)])], &[]), "Ingress")
    };
    let peers = |peer, name: &str| {
        let dns = rule(&[], &[port("UDP", 53)]);
        only(policy("a", "out", "", &[], &[rule(&[peer], &[port_named("TCP", name)]), dns]), "Egress")
    };
    let of_own =
        |name: &str| format!("a/own: ingress: none of its pods has a TCP port with the name {name:?}");
    let of_peers =
        |name: &str| format!("a/out: egress: none of the peers has a TCP port with the name {name:?}");
    for (policy, expected) in [
        (own("sql"), None),
        (own("sqll"), Some(of_own("sqll"))),
        // By UDP alone.
        (own("dns"), Some(of_own("dns"))),
        // Of another pod.
        (own("http"), Some(of_own("http"))),
        (peers(pods("app=db"), "sql"), None),
        (peers(pods("app=db"), "http"), Some(of_peers("http"))),
        (peers(spaces("team=b"), "http"), None),
        (peers(spaces("team=b"), "sql"), Some(of_peers("sql"))),
        (peers(block("10.0.0.0/30", &[]), "http"), None),
        (peers(block("10.0.0.2/32", &[]), "http"), Some(of_peers("http"))),
        (peers(block("192.0.2.0/24", &[]), "http"), None),
        // No pod is selected: it may come.
        (peers(pods("app=none"), "http"), None),
    ] {
        let db = named(pod("a", "db", "app=db", 2), "sql", Protocol::Tcp, 5432);
        let web = named(pod("b", "web", "app=web", 3), "http", Protocol::Tcp, 80);
        let others = [far(named(db, "dns", Protocol::Udp, 53)), far(web), pod("c", "c", "", 4)];
        let world = World::of(&others, std::slice::from_ref(&policy));
        assert_eq!(doubts(&world, MANY), Vec::from_iter(expected), "{policy:?}");
        assert_eq!(doubts(&world, 1), [""; 0], "nobody is looked at");
    }
}

#[test]
fn pods_without_dns() {
    let said = |policy: &str| {
        format!("a/{policy}: egress: no policy of these pods allows port 53, so they resolve no names")
    };
    let out = |name: &str, rules: &[Rule]| only(policy("a", name, "app=web", &[], rules), "Egress");
    let none = out("none", &[]);
    let ports_of = |list: &[Port]| rule(&[], list);
    for (policies, expected) in [
        (vec![none.clone()], Some(said("none"))),
        (
            vec![out("web", &[ports_of(&[port("TCP", 443), ports("UDP", 54, 99), port("SCTP", 53)])])],
            Some(said("web")),
        ),
        (vec![none.clone(), out("web", &[ports_of(&[port("TCP", 443)])])], Some(said("none"))),
        // Another policy allows it: all together count.
        (vec![none.clone(), out("dns", &[ports_of(&[port("UDP", 53)])])], None),
        (vec![out("web", &[ports_of(&[port("TCP", 53)])])], None),
        (vec![out("web", &[ports_of(&[ports("UDP", 1, 99)])])], None),
        (vec![out("web", &[ports_of(&[every_port("UDP")])])], None),
        (vec![out("web", &[rule(&[pods("app=none")], &[])])], None),
        (vec![only(none.clone(), "Ingress")], None),
        // For pods that are not here.
        (vec![only(policy("a", "db", "app=db", &[], &[]), "Egress")], None),
    ] {
        let world = World::of(&[pod("a", "web", "app=web", 1), far(pod("a", "db", "app=db", 2))], &policies);
        assert_eq!(doubts(&world, MANY), Vec::from_iter(expected), "{policies:?}");
    }
    // A ClusterNetworkPolicy that comes first may allow it.
    let mut world = World::of(&[pod("a", "web", "app=web", 1)], &[none]);
    let accept = ClusterRule {
        action: "Accept".into(),
        peers: vec![ClusterPeer::Pods(NamespacedPods::default())],
        ..ClusterRule::default()
    };
    let cluster = ClusterNetworkPolicy {
        name: "first".into(),
        tier: "Admin".into(),
        egress: vec![accept],
        ..ClusterNetworkPolicy::default()
    };
    world.compiler.set_cluster_policy(cluster);
    world.update();
    assert_eq!(doubts(&world, MANY), [""; 0]);
}

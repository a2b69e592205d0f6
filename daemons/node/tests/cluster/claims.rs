//! Node objects with foreign podCIDRs and addresses: one Event, one log line, and no other node loses its routes.

use serde_json::{Value, json};

use crate::lab::{Cluster, node_object, node_path, wait};

const BAD: &str = "bad";

/// podCIDRs that no node may have, and why.
const POD_CIDRS: [(&str, &str); 18] = [
    ("192.0.2.0/24", "addresses of nodes"),
    ("192.0.2.1/32", "this node's address"),
    ("198.51.100.3/32", "the address of a node behind the router"),
    ("2001:db8::/32", "IPv6 addresses of nodes"),
    ("10.96.5.0/24", "in the Services' network"),
    ("10.0.0.0/8", "holds the Services' network"),
    ("0.0.0.0/0", "the default route"),
    ("::/0", "the default route"),
    ("172.30.0.0/16", "a route of another program"),
    ("127.0.0.0/8", "loopback"),
    ("224.0.0.0/8", "multicast"),
    ("fe80::/64", "link-local"),
    ("ff00::/8", "multicast"),
    ("10.244.2.0/24", "another node's"),
    ("10.244.2.128/25", "part of another node's"),
    ("10.244.9.7/24", "host bits"),
    ("10.244.9.0/33", "no prefix length"),
    ("10.244.9.0/24; rm -rf /", "no network"),
];

/// Addresses that the daemon ignores. A node with no other one counts as a node without an address.
const ADDRESSES: [&str; 7] =
    ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2", "::ffff:192.0.2.9", "fe80::9"];

#[test]
fn podcidrs_that_no_node_may_have() {
    let mut cluster = Cluster::new();
    cluster.a.sh("ip route add 172.30.0.0/16 via 192.0.2.254 proto static");
    for member in cluster.members_mut() {
        member.start("--service-cidr 10.96.0.0/12,fd00:10:96::/112");
    }
    cluster.settled();
    let cluster = cluster;
    let a = &cluster.a;
    let (one, two) = (a.pod("one"), cluster.b.pod("two"));
    let expected = a.routes();
    let foreign = || {
        a.sh("ip route show; ip -6 route show")
            .lines()
            .filter(|line| !line.contains("proto 79"))
            .map(|line| {
                // Without the kernel's timers.
                line.split(" expires ").next().unwrap().to_owned()
            })
            .collect::<Vec<_>>()
    };
    let others = foreign();
    for (number, address) in ADDRESSES.into_iter().enumerate() {
        cluster.store.put(
            &node_path(&format!("lost{number}")),
            node_object(&[address], &[&format!("10.244.{}.0/24", 80 + number)]),
        );
    }
    let by_cidr = |cidr: &'static str| node_object(&["192.0.2.66", "2001:db8::66"], &[cidr]);
    let objects = POD_CIDRS.iter().map(|(cidr, why)| (by_cidr(cidr), *cidr, *why));
    let own = (node_object(&["192.0.2.1"], &["10.244.9.0/24"]), "192.0.2.1", "this node's own");
    for (number, (object, value, why)) in objects.chain([own]).enumerate() {
        // A new name each time: a cause has one Event for each object.
        let name = format!("{BAD}{number}");
        cluster.store.put(&node_path(&name), object);
        let marker = wait(
            &format!("an Event about {value}, {why}"),
            || cluster.warnings(&name),
            |events| !events.is_empty(),
        );
        assert!(text(&marker[0]).contains(value.split(';').next().unwrap()), "{value}: {marker:?}");
        wait("a line", || a.lines(&name).len(), |lines| *lines > 0);
        // A heartbeat repeats nothing.
        cluster.patch(&name, &json!({"metadata": {"annotations": {"beat": "1"}}}));
        cluster.store.put(&node_path("new"), node_object(&["192.0.2.9"], &["10.244.99.0/24"]));
        let new = vec!["10.244.99.0/24 via 192.0.2.9 dev eth0".to_owned()];
        a.has_routes(&[&expected[..], &new].concat());
        cluster.store.delete(&node_path("new"));
        a.has_routes(&expected);
        assert_eq!(a.lines(&name).len(), 1, "{value}: {:#?}", a.lines(&name));
        // The three nodes see one fault.
        assert_eq!(cluster.warnings(&name).len(), 1, "{value}: {:#?}", cluster.warnings(&name));
        assert_eq!(foreign(), others, "{value}");
        cluster.store.delete(&node_path(&name));
    }
    one.reaches(&two);
}

fn text(event: &Value) -> String {
    ["message", "note"].iter().find_map(|key| event[key].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn an_event_that_is_refused_is_sent_again() {
    let cluster = Cluster::started("");
    let mut allowed = None;
    cluster.server.faults(|faults| allowed = faults.rules.as_mut().and_then(Vec::pop));
    cluster.store.put(&node_path(BAD), node_object(&["192.0.2.66"], &["127.0.0.0/8"]));
    cluster.a.until("a refusal", || !cluster.a.lines("create an event about node bad").is_empty());
    assert!(cluster.warnings(BAD).is_empty());
    cluster.server.faults(|faults| faults.rules.as_mut().unwrap().extend(allowed));
    wait("an Event", || cluster.warnings(BAD).len(), |events| *events == 1);
}

/// The older node keeps the podCIDR; the other one gets it when the older one is gone.
#[test]
fn two_nodes_with_one_pod_cidr() {
    let mut cluster = Cluster::started("");
    let before = cluster.a.routes();
    let mut thief = node_object(&["192.0.2.9", "2001:db8::9"], &["10.244.2.0/24", "fd00:244:9::/64"]);
    thief["metadata"] = json!({"creationTimestamp": "2099-01-01T00:00:00Z"});
    cluster.store.put(&node_path("thief"), thief);
    wait(
        "an Event",
        || cluster.warnings("thief"),
        |events| events.iter().any(|event| text(event).contains("10.244.2.0/24")),
    );
    let found = cluster.a.routes();
    assert!(before.iter().all(|route| found.contains(route)), "{found:?}");
    cluster.a.pod("one").reaches(&cluster.b.pod("two"));
    // A daemon that starts later, and sees both at once, decides alike.
    cluster.a.end("KILL");
    cluster.a.sh("ip route flush proto 79");
    cluster.a.start("");
    let a = &cluster.a;
    wait(
        "b's route",
        || a.routes(),
        |routes| routes.contains(&"10.244.2.0/24 via 192.0.2.2 dev eth0".to_owned()),
    );
    cluster.store.delete(&node_path("b"));
    wait(
        "the other's route",
        || a.routes(),
        |routes| routes.contains(&"10.244.2.0/24 via 192.0.2.9 dev eth0".to_owned()),
    );
}

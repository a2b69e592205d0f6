//! Node objects that change, go and come back.

use serde_json::json;

use crate::lab::{Cluster, node_object, node_path, wait};
use crate::member::Running;

#[test]
fn addresses_pod_cidrs_and_families_change() {
    let cluster = Cluster::started("");
    let Cluster { a, b, c, .. } = &cluster;
    let to_c = a.ways_to(c);
    let has = |own: &[&str]| a.has_routes(&[own, &to_c.each_ref().map(String::as_str)].concat());
    let [b4, b6] = b.addresses();
    let [cidr4, cidr6] = b.pod_cidrs();

    // Another address. The pods' traffic goes on.
    let (one, two) = (a.pod("one"), b.pod("two"));
    b.sh("ip addr add 192.0.2.22/24 dev eth0; ip addr add 2001:db8::22/64 dev eth0 nodad");
    cluster.store.put(&node_path("b"), node_object(&["192.0.2.22", "2001:db8::22"], &[&cidr4, &cidr6]));
    has(&[&format!("{cidr4} via 192.0.2.22 dev eth0"), &format!("{cidr6} via 2001:db8::22 dev eth0")]);
    one.reaches(&two);
    // The order of the families does not matter.
    cluster.store.put(&node_path("b"), node_object(&[&b6, &b4], &[&cidr6, &cidr4]));
    has(&[&format!("{cidr4} via {b4} dev eth0"), &format!("{cidr6} via {b6} dev eth0")]);
    one.reaches(&two);
    // One family, then the other.
    cluster.store.put(&node_path("b"), node_object(&[&b4, &b6], &[&cidr6]));
    has(&[&format!("{cidr6} via {b6} dev eth0")]);
    cluster.store.put(&node_path("b"), node_object(&[&b4], &[&cidr4]));
    has(&[&format!("{cidr4} via {b4} dev eth0")]);
    // Another podCIDR, none, no address, and all as it was.
    cluster.store.put(&node_path("b"), node_object(&[&b4], &["10.244.77.0/24"]));
    has(&[&format!("10.244.77.0/24 via {b4} dev eth0")]);
    cluster.store.put(&node_path("b"), node_object(&[&b4], &[]));
    has(&[]);
    cluster.store.put(&node_path("b"), node_object(&[], &[&cidr4]));
    has(&[]);
    cluster.store.put(&node_path("b"), b.object());
    cluster.settled();
    one.reaches(&two);
    [one, two].into_iter().for_each(Running::end);

    // b goes, and comes back behind the router; then c moves to the link of a and b.
    cluster.store.delete(&node_path("b"));
    has(&[]);
    cluster.store.put(&node_path("b"), node_object(&["198.51.100.22"], &[&cidr4]));
    has(&[&format!("{cidr4} via 10.244.2.0 dev ferrule.vxlan")]);
    cluster.store.put(&node_path("b"), b.object());
    cluster.store.put(&node_path("c"), node_object(&["192.0.2.33"], &["10.244.3.0/24"]));
    let direct = ["10.244.3.0/24 via 192.0.2.33 dev eth0".to_owned()];
    a.has_routes(&[&a.ways_to(b)[..], &direct].concat());
    wait("no VXLAN device without a node that needs it", || a.node_has("ferrule.vxlan"), |has| !has);
}

#[test]
fn a_family_alone() {
    for (family, others) in [
        (0, ["10.244.2.0/24 via 192.0.2.2 dev eth0", "10.244.3.0/24 via 10.244.3.0 dev ferrule.vxlan"]),
        (
            1,
            [
                "fd00:244:2::/64 via 2001:db8::2 dev eth0",
                "fd00:244:3::/64 via fd00:244:3:: dev ferrule.vxlan",
            ],
        ),
    ] {
        let mut cluster = Cluster::new();
        for member in cluster.members() {
            let (address, cidr) = (&member.addresses()[family], &member.pod_cidrs()[family]);
            cluster.store.put(&node_path(member.name), node_object(&[address], &[cidr]));
        }
        for member in cluster.members_mut() {
            member.start("");
        }
        for member in cluster.members() {
            member.until("a conflist", || member.conflist().is_some());
        }
        cluster.a.has_routes(&others);
        let pods = [cluster.a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three")];
        assert!(pods.iter().all(|pod| pod.addresses.len() == 1));
        pods[0].reaches(&pods[1]);
        pods[0].reaches(&pods[2]);
    }
}

/// A change of one node costs one request to the kernel; other changes of its object, such as heartbeats, cost none.
#[test]
fn the_price_of_a_change() {
    let cluster = Cluster::started("");
    let Cluster { a, b, c, .. } = &cluster;
    let (cidrs, [_, b6]) = (b.pod_cidrs(), b.addresses());
    let mut last = 20;
    let mut change = || {
        last += 1;
        let address = format!("192.0.2.{last}");
        let object = node_object(&[&address, &b6], &cidrs.each_ref().map(String::as_str));
        let [to_b4, to_b6] = a.ways_to(b);
        let expected =
            [vec![to_b4.replace("192.0.2.2 ", &format!("{address} ")), to_b6], a.ways_to(c).to_vec()];
        a.requests(|| {
            cluster.store.put(&node_path("b"), object);
            a.has_routes(&expected.concat());
        })
    };
    // During the first changes the kernel may still report the new VXLAN device, which the daemon then checks.
    // One for the route, and one for the guard's sets of addresses.
    let is_one = |sent: &Vec<String>, kind: &str| sent.iter().filter(|line| line.contains(kind)).count() == 1;
    wait("one request for each", &mut change, |sent| {
        sent.len() == 2 && is_one(sent, "<NETLINK:[ROUTE:") && is_one(sent, "<NETLINK:[NETFILTER:")
    });
    a.until("at rest", || a.requests(|| ()).is_empty());
    let beats = a.requests(|| {
        for beat in 0..50 {
            let condition =
                json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": format!("{beat}")}]);
            cluster.patch("b", &json!({"status": {"conditions": condition}}));
        }
    });
    assert_eq!(beats, Vec::<String>::new());
}

//! The uplink goes down and up, and addresses move.

use cni_lab::Place as _;

use crate::lab::{Cluster, node_object, node_path};
use crate::member::Member;

/// A second link between a node and the hub's switch.
fn second_link(cluster: &Cluster, member: &Member, master: &str) {
    let namespace = member.node.netns_path();
    let name = format!("to-{}2", member.name);
    cluster
        .hub
        .sh(&format!(
            "ip link add {name} type veth peer name eth1 netns {} && ip link set {name} {master} up",
            namespace.display()
        ))
        .unwrap();
    member.sh("ip link set eth1 up");
}

#[test]
fn down_and_up() {
    let cluster = Cluster::started("");
    let a = &cluster.a;
    let (one, two, three) = (a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three"));
    let conflist = a.conflist();
    for _ in 0..3 {
        a.sh("ip link set eth0 down");
        // The kernel drops the routes of the link, and the IPv6 addresses.
        a.until("no routes of the link", || !a.routes().iter().any(|route| route.contains("dev eth0")));
        // After this the status is that without the uplink, and so is the conflist before it.
        a.until("a status", || a.sh("cat /run/ferrule/node/status.json").contains("\"waits\""));
        assert_eq!(a.conflist(), conflist, "pods start meanwhile");
        a.sh("ip link set eth0 up");
        a.address("eth0");
        cluster.settled();
    }
    one.reaches(&two);
    one.reaches(&three);
    // The link loses its carrier for a moment: nothing changes.
    cluster.hub.sh("ip link set to-a down; sleep 0.2; ip link set to-a up").unwrap();
    cluster.settled();
    one.reaches(&two);
}

#[test]
fn an_address_moves_to_another_link() {
    let cluster = Cluster::started("");
    let a = &cluster.a;
    let (one, two, three) = (a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three"));
    second_link(&cluster, a, "master lan");
    a.sh("ip addr flush dev eth0 scope global");
    a.address("eth1");
    let moved = |way: &String| way.replace("dev eth0", "dev eth1");
    a.has_routes(
        &[a.ways_to(&cluster.b), a.ways_to(&cluster.c)].concat().iter().map(moved).collect::<Vec<_>>(),
    );
    one.reaches(&two);
    one.reaches(&three);
}

#[test]
fn a_second_uplink() {
    let cluster = Cluster::started("");
    let Cluster { a, b, .. } = &cluster;
    let (one, two) = (a.pod("one"), b.pod("two"));
    cluster.hub.sh("ip link add lan2 type bridge; ip link set lan2 up").unwrap();
    for (member, number) in [(a, 1), (b, 2)] {
        second_link(&cluster, member, "master lan2");
        member.sh(&format!(
            "ip addr add 203.0.113.{number}/24 dev eth1; ip addr add 2001:db8:0:3::{number}/64 dev eth1 nodad"
        ));
    }
    // The routes stay while the Node objects have the former addresses.
    cluster.settled();
    let cidrs = b.pod_cidrs();
    let object = node_object(&["203.0.113.2", "2001:db8:0:3::2"], &cidrs.each_ref().map(String::as_str));
    cluster.store.put(&node_path("b"), object);
    let ways = [
        format!("{} via 203.0.113.2 dev eth1", cidrs[0]),
        format!("{} via 2001:db8:0:3::2 dev eth1", cidrs[1]),
    ];
    a.has_routes(&[ways.to_vec(), a.ways_to(&cluster.c).to_vec()].concat());
    one.reaches(&two);
    // The link goes down: the node's new addresses are behind the router then.
    a.sh("ip link set eth1 down");
    a.has_routes(&[
        format!("{} via 10.244.2.0 dev ferrule.vxlan", cidrs[0]),
        format!("{} via fd00:244:2:: dev ferrule.vxlan", cidrs[1]),
        a.ways_to(&cluster.c)[0].clone(),
        a.ways_to(&cluster.c)[1].clone(),
    ]);
    a.sh("ip link set eth1 up; ip addr replace 2001:db8:0:3::1/64 dev eth1 nodad");
    a.has_routes(&[ways.to_vec(), a.ways_to(&cluster.c).to_vec()].concat());
    one.reaches(&two);
}

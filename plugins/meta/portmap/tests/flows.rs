//! Deletion of stale UDP flows, and only of these. The tests need root and `nft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::{SocketAddr, UdpSocket};

use cni_lab::testing::{Added, NO_ANSWER_WAIT, serve_at, udp_ask, udp_socket};
use cni_lab::{Place as _, TIMEOUT};
use cni_runner::Attachment;
use common::{World, both, mapping, more, pods};
use ferrule_kernel::conntrack::{Filter, Flow, UDP, flows};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use serde_json::json;

/// The number of tracked UDP flows to this port.
fn tracked(world: &World, v6: bool, port: u16) -> usize {
    let family = if v6 { IpFamily::V6 } else { IpFamily::V4 };
    let filter = Filter { family, proto: UDP, dst_port: Some(port) };
    world.node.run(|| flows(&mut Socket::netfilter().unwrap(), filter).unwrap().len()).unwrap()
}

/// Keeps connection tracking active after the last rule that needs it is deleted. Without tracking, stale
/// flows would have no effect.
fn keep_tracking(world: &World) {
    world
        .nft("table inet keep { chain input { type filter hook input priority 0; ct state new accept; }\n }");
}

/// A client keeps sending from one port. Its packets go to the first pod, after DEL to the node, and after
/// the next ADD to the second pod. See issues 123 and 1190 of containernetworking/plugins.
#[test]
fn packets_of_a_persistent_client_follow_the_host_port() {
    for v6 in [false, true] {
        let world = World::new();
        keep_tracking(&world);
        let network = pods(json!({}));
        let to = SocketAddr::new(world.address(v6), 5353);
        serve_at(&world.node, "node", to);
        let first = world.add("first", &network, &both(5353, 53));
        first.serve(53);
        let outside = &world.outside[usize::from(v6)];
        let client: UdpSocket = udp_socket(outside, to);
        let ask = || udp_ask(&client, TIMEOUT).unwrap_or_else(|error| error.to_string());
        let answer = |name: &str| format!("{name} {}", outside.address());
        assert_eq!(ask(), answer("first"));
        first.del();
        assert_eq!(ask(), answer("node"));
        let second = world.add("second", &network, &both(5353, 53));
        second.serve(53);
        assert_eq!(ask(), answer("second"));
        // A second ADD of the same mappings keeps the flow.
        world.ctx.add(&second.attachment, &second.config());
        assert_eq!(tracked(&world, v6, 5353), 1);
    }
}

/// The client's flows.
fn ids(world: &World) -> Vec<Flow> {
    let filter = Filter { family: IpFamily::V4, proto: UDP, dst_port: None };
    let mut all = world.node.run(|| flows(&mut Socket::netfilter().unwrap(), filter).unwrap()).unwrap();
    all.retain(|flow| flow.original.src == world.outside[0].address());
    all.sort_by_key(|flow| flow.original.src_port);
    all
}

#[test]
fn other_flows_are_kept() {
    let world = World::new();
    keep_tracking(&world);
    world.node.sh("ip address add 192.0.2.9/24 dev out0").unwrap();
    let udp = |host_ip: &str, host: u16, container: u16| json!([mapping("udp", host_ip, host, container)]);
    // Flows that ADD and DEL must keep: to port 53 of a pod directly, to port 53 of another address of the
    // node, and to another host port that leads to container port 53.
    let far = world.add("far", &more(json!({})), &json!([]));
    far.serve(53);
    let exact = world.add("exact", &more(json!({})), &udp("192.0.2.9", 53, 53));
    exact.serve(53);
    let other = world.add("other", &more(json!({})), &udp("", 54, 53));
    other.serve(53);
    let client = &world.outside[0];
    let open = |to: SocketAddr, name: &str| {
        let socket = udp_socket(client, to);
        assert_eq!(udp_ask(&socket, TIMEOUT).unwrap(), format!("{name} 192.0.2.2"));
        socket
    };
    let kept = [
        open(SocketAddr::new(far.address(false), 53), "far"),
        open("192.0.2.9:53".parse().unwrap(), "exact"),
        open("192.0.2.1:54".parse().unwrap(), "other"),
    ];
    let before = ids(&world);
    assert_eq!(before.len(), 3);
    // Add and delete a wildcard mapping of the port, and mappings for one address.
    for host_ip in ["", "127.0.0.9", "192.0.2.1"] {
        let pod =
            world.add(&format!("dns{}", host_ip.replace('.', "")), &pods(json!({})), &udp(host_ip, 53, 53));
        assert_eq!(ids(&world), before, "ADD for {host_ip:?}");
        pod.del();
        assert_eq!(ids(&world), before, "DEL for {host_ip:?}");
    }
    drop(kept);
    // A mapping for one address does not affect the flows of a wildcard mapping with the same port.
    let wild = world.add("wild", &pods(json!({})), &udp("", 55, 53));
    wild.serve(53);
    let socket = open("192.0.2.1:55".parse().unwrap(), "wild");
    let before = ids(&world);
    let exact = world.add("exact2", &pods(json!({})), &udp("127.0.0.9", 55, 53));
    exact.del();
    assert_eq!(ids(&world), before);
    // Keeps the flow's socket open until here.
    drop(socket);
}

/// A pod that serves a host port, and a client with a flow to it. A server on the node has the same port.
fn pod_and_client<'w>(world: &'w World, name: &str, backend: &str) -> (Added<'w>, UdpSocket) {
    keep_tracking(world);
    let to: SocketAddr = "192.0.2.1:5353".parse().unwrap();
    serve_at(&world.node, "node", to);
    let pod = world.add(name, &pods(json!({"backend": backend})), &both(5353, 53));
    pod.serve(53);
    let client = udp_socket(&world.outside[0], to);
    assert_eq!(udp_ask(&client, TIMEOUT).unwrap(), format!("{name} 192.0.2.2"));
    (pod, client)
}

#[test]
fn gc_deletes_the_flows_after_a_lost_del() {
    let world = World::new();
    let (_lost, client) = pod_and_client(&world, "lost", "nftables");
    world.node.sh("rm -rf /var/lib/cni/results").unwrap();
    world.runtime().gc(&pods(json!({})), Some(&[])).unwrap();
    assert_eq!(udp_ask(&client, TIMEOUT).unwrap(), "node 192.0.2.2");
}

/// Proves that the test above needs the deletion: without it, the flow stays.
#[test]
fn without_deletion_the_client_stays_on_the_old_flow() {
    let world = World::new();
    let (first, client) = pod_and_client(&world, "first", "nftables");
    world.nft("delete table inet cni_portmap");
    first.pod.sh("ip link set eth0 down").unwrap();
    assert!(udp_ask(&client, NO_ANSWER_WAIT).is_err());
}

/// A DEL that finds nothing: of a container whose address another one has got since, and after a killed DEL.
#[test]
fn a_late_del_deletes_only_flows_that_lead_nowhere() {
    for (backend, table) in [("nftables", "inet cni_portmap"), ("iptables", "ip nat")] {
        let world = World::new();
        let (next, client) = pod_and_client(&world, "next", backend);
        let before = ids(&world);
        assert_eq!(before.len(), 1, "{backend}");
        world.ctx.del(&Attachment::new("late", "", "eth0"), &next.config());
        assert_eq!(ids(&world), before, "{backend}");
        // As a DEL that is killed before it deletes the flows.
        world.nft(&format!("delete table {table}"));
        next.del();
        assert_eq!(udp_ask(&client, TIMEOUT).unwrap(), "node 192.0.2.2", "{backend}");
    }
}

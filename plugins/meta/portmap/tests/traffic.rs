//! Connections to host ports from all kinds of clients, and the client address that the container sees. The
//! tests need root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use cni_lab::testing::{NO_ANSWER_WAIT, ask, marking_container, measure, serve, serve_at, silent, tcp};
use cni_lab::{Place as _, TIMEOUT};
use common::{World, both, mapping, more, pods};
use serde_json::json;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The bridge's address in the pod's subnet.
fn gateway(pod: IpAddr) -> IpAddr {
    match pod {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            [a, b, c, 1].into()
        }
        IpAddr::V6(ip) => {
            let mut octets = ip.octets();
            octets[15] = 1;
            octets.into()
        }
    }
}

#[test]
fn all_clients_protocols_and_families() {
    for bridged in ["0", "1"] {
        connect_from_all_clients(bridged);
    }
}

/// `bridged`: the value of bridge-nf-call-iptables and bridge-nf-call-ip6tables. With 1, bridged packets pass
/// the nat chains too.
fn connect_from_all_clients(bridged: &str) {
    let world = World::new();
    for family in ["ip", "ip6"] {
        let setting = format!("/proc/sys/net/bridge/bridge-nf-call-{family}tables");
        world.node.write_file(setting, bridged).unwrap();
    }
    let server = world.add("server", &pods(json!({})), &both(8080, 80));
    let neighbour = world.add("neighbour", &pods(json!({})), &json!([]));
    let stranger = world.add("stranger", &more(json!({})), &json!([]));
    server.serve(80);
    for proto in ["tcp", "udp"] {
        for v6 in [false, true] {
            let to = SocketAddr::new(world.address(v6), 8080);
            let outside = &world.outside[usize::from(v6)];
            let answer = |seen: IpAddr| Ok(format!("server {seen}"));
            // No masquerading is necessary, so the container sees the client's address.
            assert_eq!(ask(outside, proto, to), answer(outside.address()), "outside");
            assert_eq!(ask(&world.node, proto, to), answer(world.address(v6)), "the node");
            assert_eq!(ask(&stranger.pod, proto, to), answer(stranger.address(v6)), "another network");
            // Without masquerading, the replies to these clients would not pass the node.
            let gateway = gateway(server.address(v6));
            assert_eq!(ask(&server.pod, proto, to), answer(gateway), "itself");
            assert_eq!(ask(&neighbour.pod, proto, to), answer(gateway), "its neighbour");
            // The host port is open on every address of the node.
            assert_eq!(
                ask(&stranger.pod, proto, SocketAddr::new(gateway, 8080)),
                answer(stranger.address(v6))
            );
        }
        let to = SocketAddr::new(LOOPBACK, 8080);
        assert_eq!(ask(&world.node, proto, to), Ok(format!("server {}", gateway(server.address(false)))));
        let to = SocketAddr::new([127, 8, 8, 8].into(), 8080);
        assert_eq!(ask(&world.node, proto, to), Ok(format!("server {}", gateway(server.address(false)))));
    }
    assert_eq!(server.check(), Ok(()));
    server.del();
    for (proto, v6) in [("tcp", false), ("udp", true)] {
        let to = SocketAddr::new(world.address(v6), 8080);
        assert!(silent(&world.outside[usize::from(v6)], proto, to));
    }
    assert_eq!(world.count(), 0, "{}", world.table());
}

#[test]
fn ipv6_loopback_is_refused_at_once_and_left_to_local_servers() {
    let world = World::new();
    let server = world.add("server", &pods(json!({})), &both(8080, 80));
    server.serve(80);
    let to = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 8080);
    let refusal = || {
        let began = Instant::now();
        let error = tcp(&world.node, to, TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        began.elapsed()
    };
    let took = measure("refusal of ::1", 3, |took| *took < NO_ANSWER_WAIT, refusal);
    assert!(took < NO_ANSWER_WAIT, "{took:?}");
    serve_at(&world.node, "daemon", to);
    assert_eq!(ask(&world.node, "tcp", to), Ok("daemon ::1".to_owned()));
}

#[test]
fn host_port_for_one_address_comes_before_a_wildcard() {
    let world = World::new();
    world
        .node
        .sh("ip address add 192.0.2.9/24 dev out0; ip address add 2001:db8::9/64 dev out1 nodad")
        .unwrap();
    let of = |v4: &str, v6: &str| json!([mapping("tcp", v4, 8080, 80), mapping("TCP", v6, 8080, 80)]);
    let one = world.add("one", &pods(json!({})), &of("192.0.2.1", "2001:db8::1"));
    let two = world.add("two", &pods(json!({})), &of("192.0.2.9", "2001:db8::9"));
    let rest = world.add("rest", &pods(json!({})), &of("0.0.0.0", "::"));
    for added in [&one, &two, &rest] {
        added.serve(80);
        assert_eq!(added.check(), Ok(()));
    }
    for (v6, to, name) in [
        (false, "192.0.2.1:8080", "one"),
        (false, "192.0.2.9:8080", "two"),
        (false, "10.1.0.1:8080", "rest"),
        (true, "[2001:db8::1]:8080", "one"),
        (true, "[2001:db8::9]:8080", "two"),
        (true, "[fd00:0::1]:8080", "rest"),
    ] {
        let client = &world.outside[usize::from(v6)];
        assert_eq!(
            ask(client, "tcp", to.parse().unwrap()),
            Ok(format!("{name} {}", client.address())),
            "{to}"
        );
    }
    one.del();
    let client = &world.outside[0];
    assert_eq!(ask(client, "tcp", "192.0.2.1:8080".parse().unwrap()), Ok("rest 192.0.2.2".to_owned()));
    assert_eq!(ask(client, "tcp", "192.0.2.9:8080".parse().unwrap()), Ok("two 192.0.2.2".to_owned()));
}

#[test]
fn without_snat_nothing_is_masqueraded_and_loopback_is_closed() {
    let world = World::new();
    let server = world.add("server", &pods(json!({"snat": false})), &both(8080, 80));
    server.serve(80);
    for v6 in [false, true] {
        let outside = &world.outside[usize::from(v6)];
        let to = SocketAddr::new(world.address(v6), 8080);
        assert_eq!(ask(outside, "tcp", to), Ok(format!("server {}", outside.address())));
        assert!(silent(&server.pod, "tcp", to));
    }
    assert!(silent(&world.node, "tcp", SocketAddr::new(LOOPBACK, 8080)));
    assert_eq!(route_localnet(&world, "cni0"), "0");
    assert!(!world.table().contains("jump KUBE"));
    assert_eq!(server.check(), Ok(()));
    server.del();
}

#[test]
fn masq_all_masquerades_only_connections_to_host_ports() {
    let world = World::new();
    let server = world.add("server", &pods(json!({"masqAll": true})), &both(8080, 80));
    server.serve(80);
    for v6 in [false, true] {
        let outside = &world.outside[usize::from(v6)];
        let to = SocketAddr::new(world.address(v6), 8080);
        let masqueraded = Ok(format!("server {}", gateway(server.address(v6))));
        for proto in ["tcp", "udp"] {
            assert_eq!(ask(outside, proto, to), masqueraded);
            assert_eq!(ask(&server.pod, proto, to), masqueraded);
            let direct = SocketAddr::new(server.address(v6), 80);
            assert_eq!(ask(outside, proto, direct), Ok(format!("server {}", outside.address())));
        }
    }
    assert_eq!(ask(&world.node, "tcp", SocketAddr::new(LOOPBACK, 8080)), Ok("server 10.1.0.1".to_owned()));
    assert_eq!(server.check(), Ok(()));
}

/// CVE-2025-67499.
#[test]
fn packets_to_other_hosts_are_not_translated() {
    let world = World::new();
    let mappings = json!([mapping("tcp", "", 8080, 80), mapping("tcp", "10.1.1.2", 9090, 80)]);
    let server = world.add("server", &pods(json!({})), &mappings);
    let other = world.add("other", &more(json!({})), &json!([]));
    server.serve(80);
    other.serve(8080);
    other.serve(9090);
    for port in [8080, 9090] {
        let to = SocketAddr::new(other.address(false), port);
        assert_eq!(ask(&world.outside[0], "tcp", to), Ok("other 192.0.2.2".to_owned()));
        assert_eq!(ask(&world.node, "tcp", to), Ok("other 10.1.1.1".to_owned()));
        assert_eq!(ask(&server.pod, "tcp", to), Ok(format!("other {}", server.address(false))));
    }
    let to = SocketAddr::new(other.address(true), 8080);
    assert_eq!(ask(&world.outside[1], "tcp", to), Ok(format!("other {}", world.outside[1].address())));
}

fn route_localnet(world: &World, link: &str) -> String {
    world.node.read_file(format!("/proc/sys/net/ipv4/conf/{link}/route_localnet")).unwrap().trim().to_owned()
}

/// CVE-2020-8558.
#[test]
fn pod_cannot_reach_servers_on_the_nodes_loopback_address() {
    let world = World::new();
    let server = world.add("server", &pods(json!({})), &json!([mapping("tcp", "", 8080, 80)]));
    serve_at(&world.node, "secret", "127.0.0.1:9999".parse().unwrap());
    let attack = "set -e
        sysctl -qw net.ipv4.conf.eth0.route_localnet=1 net.ipv4.conf.all.route_localnet=1
        ip route del local 127.0.0.0/8 table local 2>/dev/null || true
        ip address flush dev lo
        ip route add 127.0.0.0/8 via 10.1.0.1 dev eth0 src 10.1.0.2";
    server.pod.sh(attack).unwrap();
    let to: SocketAddr = "127.0.0.1:9999".parse().unwrap();
    assert_eq!(route_localnet(&world, "cni0"), "1");
    assert!(silent(&server.pod, "tcp", to));
    // As the node itself, to a service of the node on any of its addresses.
    server.pod.sh("ip address add 127.0.0.2/32 dev eth0").unwrap();
    let asks_as_the_node = "python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((\"127.0.0.2\", 7777))
s.sendto(b\"?\", (\"10.1.0.1\", 9998))'";
    world.node.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.cni0.rp_filter=0").unwrap();
    let service = world.node.run(|| UdpSocket::bind("10.1.0.1:9998")).unwrap().unwrap();
    service.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut bytes = [0; 16];
    server.pod.sh(asks_as_the_node).unwrap();
    assert!(service.recv_from(&mut bytes).is_err(), "a packet from 127.0.0.2 has come in by cni0");
    // Without the guard, the attacks succeed.
    world.nft("flush chain inet cni_portmap guard");
    assert_eq!(ask(&server.pod, "tcp", to), Ok("secret 10.1.0.2".to_owned()));
    server.pod.sh(asks_as_the_node).unwrap();
    service.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(service.recv_from(&mut bytes).unwrap().1.to_string(), "127.0.0.2:7777");
    assert!(server.check().unwrap_err().contains("\"guard\""));
}

#[test]
fn route_localnet_is_enabled_only_for_loopback_and_on_the_pods_link() {
    let world = World::new();
    let network = pods(json!({}));
    let outside_only = world.add("a", &network, &json!([mapping("tcp", "192.0.2.1", 8080, 80)]));
    let v6_only = world.add("b", &network, &json!([mapping("tcp", "::", 8081, 80)]));
    assert_eq!(route_localnet(&world, "cni0"), "0");
    assert_eq!((outside_only.check(), v6_only.check()), (Ok(()), Ok(())));
    let loopback_only = world.add("c", &network, &json!([mapping("tcp", "127.0.0.9", 8082, 80)]));
    assert_eq!(route_localnet(&world, "cni0"), "1");
    for link in ["all", "default", "out0", "out1", "lo"] {
        assert_eq!(route_localnet(&world, link), "0", "{link}");
    }
    serve(&loopback_only.pod, "c", 80);
    assert_eq!(ask(&world.node, "tcp", "127.0.0.9:8082".parse().unwrap()), Ok("c 10.1.0.1".to_owned()));
    assert!(silent(&world.node, "tcp", "127.0.0.1:8082".parse().unwrap()));
    assert!(silent(&world.outside[0], "tcp", "192.0.2.1:8082".parse().unwrap()));
    world.node.sh("sysctl -qw net.ipv4.conf.cni0.route_localnet=0").unwrap();
    assert!(loopback_only.check().unwrap_err().contains("net/ipv4/conf/cni0/route_localnet is 0"));
}

/// A macvlan on a virtual link of the node keeps the marks of the container's packets: Kubernetes' bit would leave the host port alone, and
/// that of `markMasqBit` would hide the container's address.
#[test]
fn the_marks_of_a_container_change_nothing() {
    for (backend, bit) in [("nftables", 9), ("iptables", 13)] {
        let world = World::new();
        let network = pods(json!({"backend": backend, "markMasqBit": bit}));
        let server = world.add("server", &network, &json!([mapping("tcp", "", 8080, 80)]));
        let neighbour = world.add("neighbour", &network, &json!([]));
        server.serve(80);
        let marking = marking_container(&world.ctx, &[bit, 14]);
        let to: SocketAddr = "10.9.0.1:8080".parse().unwrap();
        assert_eq!(ask(&marking, "tcp", to), Ok("server 10.9.0.2".to_owned()), "{backend}");
        // The marks of our own chains work.
        let masqueraded = Ok("server 10.1.0.1".to_owned());
        assert_eq!(ask(&neighbour.pod, "tcp", SocketAddr::new(world.address(false), 8080)), masqueraded);
        world.nft("flush chain inet cni_portmap foreign-marks");
        if backend == "nftables" {
            assert!(tcp(&marking, to, NO_ANSWER_WAIT).is_err(), "bit 14, without the rule that clears it");
            assert!(server.check().unwrap_err().contains("\"foreign-marks\""));
        }
        marking
            .sh(&format!(
                "nft 'flush chain ip marks out; add rule ip marks out meta mark set {:#x}'",
                1 << bit
            ))
            .unwrap();
        assert_eq!(
            ask(&marking, "tcp", to),
            masqueraded,
            "{backend}, without the rule that clears bit {bit}"
        );
    }
}

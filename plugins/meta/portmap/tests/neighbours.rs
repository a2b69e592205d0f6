//! Host ports beside rules like those of kube-proxy in its three modes, and beside other programs that change
//! their own tables. The tests need root, `nft` and both variants of `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;

use cni_lab::Place as _;
use cni_lab::testing::ask;
use cni_runner::Network;
use common::{World, both, mapping, more, pods};
use serde_json::{Value, json};

/// kube-proxy's iptables rules: Services come before other rules; marked packets are masqueraded.
fn kube_proxy_by(program: &str) -> String {
    format!(
        "set -e; t='{program} -t nat'
        $t -N KUBE-SERVICES; $t -N KUBE-SVC; $t -N KUBE-MARK-MASQ; $t -N KUBE-POSTROUTING
        $t -I PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES
        $t -I OUTPUT -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES
        $t -I POSTROUTING -m comment --comment 'kubernetes postrouting rules' -j KUBE-POSTROUTING
        $t -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
        $t -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
        $t -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
        $t -A KUBE-POSTROUTING -m comment --comment 'kubernetes service traffic requiring SNAT' -j MASQUERADE --random-fully"
    )
}

/// The same in kube-proxy's nftables mode. The Service has port 7000 of the node and of 10.96.0.1.
fn kube_proxy_by_nft(backend: &str) -> String {
    format!(
        "table ip kube-proxy {{
            map services {{ type ipv4_addr . inet_proto . inet_service : verdict;
                elements = {{ 192.0.2.1 . tcp . 7000 : goto service, 10.96.0.1 . tcp . 7000 : goto service }} }}
            chain service {{ jump mark-for-masquerade; meta l4proto tcp dnat to {backend}; }}
            chain mark-for-masquerade {{ meta mark set meta mark or 0x4000; }}
            chain masquerading {{ meta mark and 0x4000 == 0 return; meta mark set meta mark xor 0x4000; masquerade fully-random; }}
            chain services {{ ip daddr . meta l4proto . th dport vmap @services; }}
            chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
            chain nat-output {{ type nat hook output priority -100; jump services; }}
            chain nat-postrouting {{ type nat hook postrouting priority 100; jump masquerading; }}
        }}"
    )
}

fn service_by(program: &str, backend: &str) -> String {
    format!(
        "set -e; t='{program} -t nat'
        for ip in 192.0.2.1 10.96.0.1; do $t -A KUBE-SERVICES -d $ip/32 -p tcp --dport 7000 -j KUBE-SVC; done
        $t -A KUBE-SVC -j KUBE-MARK-MASQ
        $t -A KUBE-SVC -p tcp -j DNAT --to-destination {backend}"
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proxy {
    Iptables(&'static str),
    Nft,
}

const PROXIES: [Proxy; 3] = [Proxy::Iptables("iptables-nft"), Proxy::Iptables("iptables-legacy"), Proxy::Nft];

fn install(world: &World, proxy: Proxy, backend: &str) {
    match proxy {
        Proxy::Nft => world.nft(&kube_proxy_by_nft(backend)),
        Proxy::Iptables(program) => {
            world.node.sh(&kube_proxy_by(program)).unwrap();
            world.node.sh(&service_by(program, backend)).unwrap();
        }
    }
}

/// The rules of kube-proxy, listed by its own tool.
fn proxy_listing(world: &World, proxy: Proxy) -> String {
    match proxy {
        Proxy::Nft => world.node.tool("nft", &["list", "table", "ip", "kube-proxy"]).unwrap(),
        Proxy::Iptables(program) => world.node.tool(&format!("{program}-save"), &["-t", "nat"]).unwrap(),
    }
}

/// CVE-2019-9946: a Service takes precedence over a host port, regardless of the order of registration. With
/// kube-proxy in each mode, a connection is masqueraded once and kube-proxy's tables are left alone.
#[test]
fn services_take_precedence_and_masquerading_happens_once() {
    for proxy in PROXIES {
        for proxy_first in [true, false] {
            let world = World::new();
            let what = format!("{proxy:?}, proxy first: {proxy_first}");
            let backend = "10.1.1.2:80";
            if proxy_first {
                install(&world, proxy, backend);
            }
            let mappings = json!([mapping("tcp", "", 7000, 80), mapping("tcp", "", 8080, 80)]);
            let server =
                world.add("server", &pods(json!({"externalSetMarkChain": "KUBE-MARK-MASQ"})), &mappings);
            let behind = world.add("service", &more(json!({})), &json!([]));
            if !proxy_first {
                install(&world, proxy, backend);
            }
            server.serve(80);
            behind.serve(80);
            let outside = &world.outside[0];
            // The Service's own rules masquerade the connection.
            let service: SocketAddr = "192.0.2.1:7000".parse().unwrap();
            assert_eq!(ask(outside, "tcp", service), Ok("service 10.1.1.1".to_owned()), "{what}");
            assert_eq!(ask(&world.node, "tcp", service), Ok("service 10.1.1.1".to_owned()), "{what}");
            let cluster: SocketAddr = "10.96.0.1:7000".parse().unwrap();
            assert_eq!(ask(&server.pod, "tcp", cluster), Ok("service 10.1.1.1".to_owned()), "{what}");
            // The same port of another node address is the host port.
            assert_eq!(
                ask(outside, "tcp", "10.1.0.1:7000".parse().unwrap()),
                Ok("server 192.0.2.2".to_owned()),
                "{what}"
            );
            // The host port: only the pod itself is masqueraded.
            let port: SocketAddr = "192.0.2.1:8080".parse().unwrap();
            assert_eq!(ask(outside, "tcp", port), Ok("server 192.0.2.2".to_owned()), "{what}");
            assert_eq!(ask(&server.pod, "tcp", port), Ok("server 10.1.0.1".to_owned()), "{what}");
            assert_eq!(
                ask(&world.node, "tcp", "127.0.0.1:8080".parse().unwrap()),
                Ok("server 10.1.0.1".to_owned()),
                "{what}"
            );
            // kube-proxy's tool can still read its tables and add rules.
            assert!(proxy_listing(&world, proxy).contains("KUBE-SVC") || proxy == Proxy::Nft);
            if let Proxy::Iptables(program) = proxy {
                world.node.sh(&format!("{program} -t nat -A KUBE-POSTROUTING -j RETURN")).unwrap();
            }
            assert!(world.listing().contains("table inet cni_portmap"));
            assert_eq!(server.check(), Ok(()), "{what}");
        }
    }
}

/// One chain masquerades a marked connection and clears the mark, so that later chains do not match it.
#[test]
fn mark_is_cleared_by_the_masquerading_chain() {
    let world = World::new();
    install(&world, Proxy::Nft, "10.1.1.2:80");
    let server = world.add("server", &pods(json!({})), &both(8080, 80));
    server.serve(80);
    world.nft(
        "table ip watch {
            chain late { type nat hook postrouting priority 300; meta mark and 0x4000 == 0x4000 counter comment \"still marked\"; }
            chain filter { type filter hook postrouting priority 310; ct state new ct status snat counter comment \"masqueraded\"; }
        }",
    );
    assert_eq!(ask(&server.pod, "tcp", "192.0.2.1:8080".parse().unwrap()), Ok("server 10.1.0.1".to_owned()));
    let watch = world.node.tool("nft", &["list", "table", "ip", "watch"]).unwrap();
    let packets = |comment: &str| -> u32 {
        let line = watch.lines().find(|line| line.contains(comment)).unwrap();
        line.split("packets ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    // No later chain sees our mark.
    assert_eq!(packets("still marked"), 0, "{watch}");
    assert!(packets("masqueraded") > 0, "{watch}");
}

#[test]
fn host_ports_survive_changes_of_other_programs() {
    let world = World::new();
    let server = world.add("server", &pods(json!({})), &both(8080, 80));
    server.serve(80);
    let table = world.table();
    world
        .node
        .sh("iptables-nft -t nat -A POSTROUTING -j ACCEPT; iptables-legacy -t nat -A POSTROUTING -j ACCEPT")
        .unwrap();
    // A reload of firewalld, and iptables commands of an administrator.
    world.nft("table inet firewalld { chain nat_PREROUTING { type nat hook prerouting priority -90; }\n }");
    world.nft("delete table inet firewalld");
    world.nft("table inet firewalld { chain nat_PREROUTING { type nat hook prerouting priority -90; }\n }");
    for program in ["iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"] {
        world.node.sh(&format!("{program} -F -t nat; {program} -X -t nat; {program} -F")).unwrap();
    }
    assert_eq!(world.table(), table);
    for v6 in [false, true] {
        let outside = &world.outside[usize::from(v6)];
        let to = SocketAddr::new(world.address(v6), 8080);
        assert_eq!(ask(outside, "tcp", to), Ok(format!("server {}", outside.address())));
    }
    assert_eq!(server.check(), Ok(()));
    // `flush ruleset` deletes our table too. CHECK reports it, and the next ADD creates it again.
    world.nft("flush ruleset");
    assert!(server.check().is_err());
    world.ctx.add(&server.attachment, &server.config());
    assert_eq!(server.check(), Ok(()));
}

/// The configuration in the Kubernetes documentation, with bridge instead of calico.
#[test]
fn configuration_of_the_kubernetes_documentation() {
    let list: Value = json!({
        "name": "k8s-pod-network",
        "cniVersion": "0.4.0",
        "plugins": [
            {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}, "externalSetMarkChain": "KUBE-MARK-MASQ"}
        ]
    });
    let network = Network::from_value(&list).unwrap();
    for proxy in [None, Some(PROXIES[0]), Some(PROXIES[1]), Some(PROXIES[2])] {
        let world = World::new();
        if let Some(proxy) = proxy {
            install(&world, proxy, "10.1.1.2:80");
        }
        // The keys as containerd writes them.
        let mappings = json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}]);
        let server = world.add("server", &network, &mappings);
        server.serve(80);
        let to: SocketAddr = "192.0.2.1:8080".parse().unwrap();
        assert_eq!(ask(&world.outside[0], "tcp", to), Ok("server 192.0.2.2".to_owned()), "{proxy:?}");
        assert_eq!(ask(&world.node, "tcp", to), Ok("server 192.0.2.1".to_owned()), "{proxy:?}");
        assert_eq!(ask(&server.pod, "tcp", to), Ok("server 10.1.0.1".to_owned()), "{proxy:?}");
        assert_eq!(server.check(), Ok(()));
        server.del();
        assert_eq!(world.count(), 0);
    }
}

//! Host ports beside kube-proxy in IPVS mode: Services come first. The tests need root and both variants of
//! `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;

use cni_lab::testing::iptables::{saved, variant};
use cni_lab::testing::{self, Added, TestContext, ask, serve_at};
use cni_lab::{Place as _, kernel_module};
use cni_runner::Network;
use common::ipvs::{Balancer, KubeProxy, NODE_PORT, cluster_ip};
use common::{World, mapping, more, pods, repairing};
use serde_json::{Value, json};
use tempfile::TempDir;

const NFT: &str = "nftables";
const IPTABLES: &str = "iptables";

/// Host ports with the numbers of the Service's ports, of its NodePort, and one that no Service has.
fn mappings() -> Value {
    let ports = [("tcp", 443), ("udp", 53), ("tcp", NODE_PORT), ("udp", NODE_PORT), ("tcp", 8080)];
    Value::Array(ports.map(|(proto, port)| mapping(proto, "", port, 80)).to_vec())
}

/// A node on which portmap and kube-proxy use one variant of iptables.
struct Scene<'w> {
    world: &'w World,
    network: Network,
    variant: &'static str,
    ctx: TestContext,
    _programs: TempDir,
}

impl<'w> Scene<'w> {
    fn new(world: &'w World, backend: &str, name: &'static str) -> Self {
        let network = pods(json!({"backend": backend}));
        let programs = variant(name);
        let ctx = world.with_programs(programs.path());
        Scene { world, network, variant: name, ctx, _programs: programs }
    }

    fn add(&self, name: &str, mappings: &Value) -> Added<'w> {
        self.add_to(&self.network, name, mappings)
    }

    fn add_to(&self, network: &Network, name: &str, mappings: &Value) -> Added<'w> {
        self.world.add_by(&self.ctx, name, network, mappings)
    }

    fn check(&self, added: &Added<'_>) -> Result<(), String> {
        self.ctx.runtime().check(&added.network, &added.attachment).map_err(|error| error.to_string())
    }

    fn del(&self, added: &Added<'_>) {
        self.ctx.runtime().del(&added.network, &added.attachment).unwrap();
    }

    /// A raw call of portmap for a pod.
    fn call(&self, verb: &str, added: &Added<'_>) {
        let mut config = added.config();
        // For GC.
        config["cni.dev/valid-attachments"] =
            json!([{"containerID": added.attachment.container_id, "ifname": added.attachment.ifname}]);
        let output = self.ctx.call(verb, &added.attachment, &config);
        assert!(output.success(), "{verb}: {}", output.stdout_text());
    }

    fn repair(&self, added: &Added<'_>) {
        repairing(&self.ctx).add(&added.attachment, &added.config());
    }

    /// A Service with a pod behind it. Without `ip_vs` the test itself listens at the Service's addresses.
    fn kube_proxy(&self, service: &Added<'_>, has_ipvs: bool) -> KubeProxy<'w> {
        let balancer = match has_ipvs {
            true => Balancer::Ipvs { pod: [service.address(false), service.address(true)] },
            false => Balancer::Listeners,
        };
        KubeProxy { world: self.world, variant: self.variant, balancer }
    }
}

/// Asks from all clients. The Service must answer at its addresses and at its NodePort, the host ports at all
/// others.
fn services_come_first(server: &Added<'_>, neighbour: &Added<'_>, what: &str) {
    let world = server.world;
    for v6 in [false, true] {
        let [service, node] = [cluster_ip(v6), world.address(v6)];
        let ask = |name: &str, client: &dyn Fn(&str, SocketAddr) -> Result<String, String>| {
            for (who, proto, at, port) in [
                ("service", "tcp", service, 443),
                ("service", "udp", service, 53),
                ("service", "tcp", node, NODE_PORT),
                ("service", "udp", node, NODE_PORT),
                ("server", "tcp", node, 443),
                ("server", "udp", node, 53),
                ("server", "tcp", node, 8080),
            ] {
                let answer = client(proto, SocketAddr::new(at, port));
                let is_right = answer.as_ref().is_ok_and(|answer| answer.starts_with(&format!("{who} ")));
                assert!(is_right, "{what}: {name} asks {proto} {at} {port}: {answer:?}, not {who}");
            }
        };
        ask("outside", &|proto, to| testing::ask(&world.outside[usize::from(v6)], proto, to));
        ask("node", &|proto, to| testing::ask(&world.node, proto, to));
        ask("server", &|proto, to| testing::ask(&server.pod, proto, to));
        ask("neighbour", &|proto, to| testing::ask(&neighbour.pod, proto, to));
    }
    let local = ask(&world.node, "tcp", "127.0.0.1:8080".parse().unwrap());
    assert!(local.is_ok_and(|answer| answer.starts_with("server ")), "{what}: 127.0.0.1");
}

/// The events between kube-proxy and a pod with host ports, from the start of either to the end of both.
fn beside_kube_proxy(backend: &str, variant: &'static str, proxy_first: bool, has_ipvs: bool) {
    let what = format!("{backend} beside {variant}, kube-proxy first: {proxy_first}");
    let world = World::new();
    world.outside[0].sh("ip route replace 10.96.0.0/16 via 192.0.2.1").unwrap();
    let scene = Scene::new(&world, backend, variant);
    let service = scene.add_to(&more(json!({})), "service", &json!([]));
    service.serve(80);
    let proxy = scene.kube_proxy(&service, has_ipvs);
    if has_ipvs {
        for module in ["ip_vs", "ip_vs_rr", "dummy", "xt_set"] {
            kernel_module(module);
        }
    }
    if proxy_first {
        proxy.start();
    }
    let server = scene.add("server", &mappings());
    server.serve(80);
    let neighbour = scene.add("neighbour", &json!([]));
    if !proxy_first {
        proxy.start();
    }
    if !has_ipvs {
        for v6 in [false, true] {
            let (service, node) = (cluster_ip(v6), world.address(v6));
            for (address, port) in [(service, 443), (service, 53), (node, NODE_PORT)] {
                serve_at(&world.node, "service", SocketAddr::new(address, port));
            }
        }
    }
    if !proxy_first && backend == NFT {
        // Packets that kube-proxy marks go to it at once, all others after the next ADD or DEL, or after repair.
        let to = SocketAddr::new(cluster_ip(false), 443);
        assert!(ask(&world.outside[0], "tcp", to).unwrap().starts_with("service "), "{what}");
        assert!(scene.check(&server).unwrap_err().contains("IPVS"), "{what}");
        if variant == "nft" {
            let other = scene.add("other", &json!([]));
            scene.del(&other);
        } else {
            scene.repair(&server);
        }
    } else if !proxy_first {
        // With iptables only NodePorts need a rule, which comes with the next pod that has host ports.
        scene.add("other", &json!([mapping("tcp", "", 9, 9)]));
    }
    services_come_first(&server, &neighbour, &what);
    assert_eq!(scene.check(&server), Ok(()), "{what}");
    proxy.sync();
    services_come_first(&server, &neighbour, &format!("{what}, after a resync"));
    scene.call("ADD", &server);
    services_come_first(&server, &neighbour, &format!("{what}, after a second ADD"));
    assert_eq!(scene.check(&server), Ok(()), "{what}");

    proxy.clean_up();
    let to = SocketAddr::new(world.address(false), 8080);
    assert!(ask(&world.outside[0], "tcp", to).is_ok(), "{what}, without kube-proxy");
    assert_eq!(scene.check(&server), Ok(()), "{what}, without kube-proxy");
    scene.del(&server);
    assert!(!saved(&world.node, variant).contains("FERRULE"), "{what}: {}", saved(&world.node, variant));
    assert!(!world.table().contains("ipvs"), "{what}: {}", world.table());
}

/// The same with virtual servers that the test itself plays, in both orders.
fn beside_played_kube_proxy(backend: &str, variant: &'static str) {
    for proxy_first in [true, false] {
        beside_kube_proxy(backend, variant, proxy_first, false);
    }
}

#[test]
fn nftables_beside_iptables_nft() {
    beside_played_kube_proxy(NFT, "nft");
}

#[test]
fn nftables_beside_iptables_legacy() {
    beside_played_kube_proxy(NFT, "legacy");
}

#[test]
fn iptables_beside_iptables_nft() {
    beside_played_kube_proxy(IPTABLES, "nft");
}

#[test]
fn iptables_beside_iptables_legacy() {
    beside_played_kube_proxy(IPTABLES, "legacy");
}

/// The same with real virtual servers, and rules that look into ipsets. The emulator is slow, so each combination of
/// programs has one of the two orders.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn nftables_beside_ip_vs() {
    beside_kube_proxy(NFT, "nft", false, true);
    beside_kube_proxy(NFT, "legacy", true, true);
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn iptables_beside_ip_vs() {
    beside_kube_proxy(IPTABLES, "nft", true, true);
}

/// CHECK notices a table whose base chains lead past the gate, and the next ADD gives it its gate.
#[test]
fn a_table_without_a_gate() {
    let world = World::new();
    let scene = Scene::new(&world, NFT, "nft");
    let server = scene.add("server", &mappings());
    world.nft(
        "flush chain inet cni_portmap prerouting; flush chain inet cni_portmap output
        flush chain inet cni_portmap local; delete chain inet cni_portmap local
        add rule inet cni_portmap prerouting fib daddr type local jump hostports
        add rule inet cni_portmap output fib daddr type local jump hostports",
    );
    assert!(scene.check(&server).unwrap_err().contains("\"prerouting\""));
    scene.add("other", &json!([mapping("tcp", "", 9, 9)]));
    assert!(world.table().contains("chain local"), "{}", world.table());
    assert_eq!(scene.check(&server), Ok(()));
}

/// CHECK reports each kind of damage to the rules of iptables, and the next ADD or GC mends it, and so does repair.
#[test]
fn check_looks_for_the_rules_of_iptables() {
    for (variant, damage) in [
        ("nft", "iptables-nft -t nat -D OUTPUT -m addrtype --dst-type LOCAL -j FERRULE-HOSTPORTS"),
        ("nft", "ip6tables-nft -t nat -F FERRULE-HOSTPORTS"),
        ("legacy", "iptables-legacy -t nat -F FERRULE-HOSTPORTS"),
    ] {
        let world = World::new();
        let scene = Scene::new(&world, NFT, variant);
        let server = scene.add("server", &mappings());
        let proxy = scene.kube_proxy(&server, false);
        proxy.start();
        scene.call("ADD", &server);
        assert_eq!(scene.check(&server), Ok(()), "{damage}");
        world.node.sh(damage).unwrap();
        assert!(scene.check(&server).unwrap_err().contains("FERRULE-HOSTPORTS"), "{damage}");
        // ADD starts no process to look into a legacy table, GC does.
        scene.call(if variant == "nft" { "ADD" } else { "GC" }, &server);
        assert_eq!(scene.check(&server), Ok(()), "{damage}");
        let before = (saved(&world.node, variant), world.count());
        world
            .node
            .sh(&format!("{damage}; nft delete element inet cni_portmap dnat4 '{{ tcp . 8080 }}'"))
            .unwrap();
        assert!(scene.check(&server).is_err(), "{damage}");
        scene.repair(&server);
        assert_eq!(scene.check(&server), Ok(()), "{damage}");
        assert_eq!(saved(&world.node, variant), before.0, "{damage}");
        assert!(world.table().contains("ipvs-inet-12"), "{}", world.table());
        // Without the gate, which says the bit, it is that of the configuration.
        world.nft("delete table inet cni_portmap");
        scene.repair(&server);
        assert_eq!((saved(&world.node, variant), world.count()), before);
    }
}

/// A cache for DNS on an address of its own link, as NodeLocal DNSCache has it: its rules exempt the address from
/// connection tracking, and so from every translation.
#[test]
fn node_local_dns_keeps_its_port() {
    for backend in [NFT, IPTABLES] {
        let world = World::new();
        let scene = Scene::new(&world, backend, "nft");
        world
            .node
            .sh("set -e; ip link add nodelocaldns type ifb; ip address add 169.254.20.10/32 dev nodelocaldns
                ip link set nodelocaldns up
                for proto in udp tcp; do
                    iptables-nft -t raw -A PREROUTING -d 169.254.20.10/32 -p $proto --dport 53 -j NOTRACK
                    iptables-nft -t raw -A OUTPUT -d 169.254.20.10/32 -p $proto --dport 53 -j NOTRACK
                    iptables-nft -t raw -A OUTPUT -s 169.254.20.10/32 -p $proto --sport 53 -j NOTRACK
                done")
            .unwrap();
        let cache: SocketAddr = "169.254.20.10:53".parse().unwrap();
        serve_at(&world.node, "cache", cache);
        let server = scene.add("server", &json!([mapping("udp", "", 53, 80), mapping("tcp", "", 53, 80)]));
        server.serve(80);
        let neighbour = scene.add("neighbour", &json!([]));
        for proto in ["udp", "tcp"] {
            for answer in [ask(&neighbour.pod, proto, cache), ask(&world.node, proto, cache)] {
                assert!(
                    answer.as_ref().is_ok_and(|answer| answer.starts_with("cache ")),
                    "{backend}: {answer:?}"
                );
            }
            let to = SocketAddr::new(world.address(false), 53);
            assert!(ask(&neighbour.pod, proto, to).unwrap().starts_with("server "), "{backend}");
        }
    }
}

//! Repair of host ports that another program has removed. The tests need root, `nft`, `strace` and both variants of `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};

use cni_lab::testing::iptables::{VARIANTS, saved, variant};
use cni_lab::testing::{
    Added, ErrorObject, Expect as _, Random, TestContext, ask, serve_at, udp_ask, udp_socket,
};
use cni_lab::{Place as _, TIMEOUT};
use common::{World, both, echo, echoes, mapping, pods, repairing};
use ferrule_kernel::conntrack::{Filter, UDP, flows};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A node with two pods that have host ports, by one variant of iptables: the tests damage those of the server.
struct Scene<'w> {
    world: &'w World,
    ctx: TestContext,
    repair: TestContext,
    server: Added<'w>,
    neighbour: Added<'w>,
    _programs: TempDir,
}

impl<'w> Scene<'w> {
    fn new(world: &'w World, keys: Value, variant_name: &str) -> Self {
        let programs = variant(variant_name);
        let ctx = world.with_programs(programs.path());
        let network = pods(keys);
        let add = |name: &str, port, more: u16| {
            let [tcp, udp] = ["tcp", "udp"].map(|proto| mapping(proto, "", port, 80));
            let ports = json!([tcp, udp, mapping("tcp", "192.0.2.1", more, 81)]);
            let added = world.add_by(&ctx, name, &network, &ports);
            added.serve(80);
            added
        };
        let (server, neighbour) = (add("server", 8080, 9080), add("neighbour", 8081, 9081));
        let repair = repairing(&ctx);
        let scene = Scene { world, ctx, repair, server, neighbour, _programs: programs };
        scene.damage("true");
        scene
    }

    /// Connection tracking stays active even if all tables are gone.
    fn damage(&self, script: &str) {
        self.world.node.sh(script).unwrap();
        self.world.nft(
            "add table ip keep; add chain ip keep input { type filter hook input priority 0; }
            flush chain ip keep input; add rule ip keep input ct state new accept",
        );
    }

    fn check(&self, pod: &Added<'_>) -> Result<(), ErrorObject> {
        let output = self.ctx.call("CHECK", &pod.attachment, &pod.config());
        if output.success() { Ok(()) } else { Err(output.error()) }
    }

    fn repair(&self, pod: &Added<'_>) {
        let output = self.repair.call("ADD", &pod.attachment, &pod.config());
        let said = output.stderr_text();
        assert!(output.success() && said.lines().all(|line| line.starts_with("taking over")), "{output:?}");
    }

    /// What `ferrule repair` does.
    fn repair_what_check_refuses(&self, pod: &Added<'_>, what: &str) {
        if self.check(pod).is_err() {
            self.repair(pod);
            assert_eq!(self.check(pod).err().map(|error| error.msg), None, "{what}");
        }
    }

    /// The content of all tables, in any order.
    fn state(&self) -> BTreeSet<String> {
        let all = self.world.listing() + &saved(&self.world.node, "legacy");
        let all = all.replace("elements = {", ",").replace('}', ",");
        all.split([',', '\n']).map(|line| line.trim().to_owned()).collect()
    }

    /// The chains and rules of all tables with their handles, each behind its table.
    fn handles(&self) -> Vec<String> {
        let listing = self.world.node.tool("nft", &["-a", "-s", "list", "ruleset"]).unwrap();
        let mut table = "";
        let mut handles = Vec::new();
        for line in listing.lines().filter(|line| line.contains("# handle")) {
            if line.starts_with("table") {
                table = line;
            } else if !table.starts_with("table ip keep") {
                // The same rule of iptables is not always printed in the same words.
                let port = if line.contains("8081") { " 8081" } else { "" };
                let handle = line.split_once('#').unwrap().1;
                handles.push(format!("{table}{port}:{handle}"));
            }
        }
        handles
    }

    /// Panics unless both pods answer through their host ports, from outside, from the node, and from the other pod.
    fn serves(&self, what: &str) {
        for (pod, port, client) in
            [(&self.server, 8080, &self.neighbour), (&self.neighbour, 8081, &self.server)]
        {
            for v6 in [false, true] {
                let to = SocketAddr::new(self.world.address(v6), port);
                for proto in ["tcp", "udp"] {
                    let asked = [
                        ask(&self.world.outside[usize::from(v6)], proto, to),
                        ask(&client.pod, proto, to),
                        ask(&pod.pod, proto, to),
                    ];
                    for answer in asked {
                        let name = pod.pod.name();
                        let is_right = answer.as_ref().is_ok_and(|answer| answer.starts_with(name));
                        assert!(is_right, "{what}: {name} {proto} {to}: {answer:?}");
                    }
                }
            }
            let local = ask(&self.world.node, "tcp", SocketAddr::from(([127, 0, 0, 1], port)));
            assert!(local.is_ok(), "{what}: {local:?}");
        }
    }

    /// Damages, repairs and compares. Returns the error of CHECK.
    fn mends(&self, damage: &str, before: &BTreeSet<String>) -> String {
        self.damage(damage);
        let why = self.check(&self.server).expect_err(damage).msg;
        // The rules of the neighbour, of the other family, and all chains if only elements are missing.
        let mut sound = self.handles();
        sound.retain(|line| {
            let is_other_family = damage.starts_with("ip6tables") && line.starts_with("table ip nat");
            is_other_family || line.contains(" 8081:") || damage.contains(" element ")
        });
        self.repair(&self.server);
        assert_eq!(self.check(&self.server).err().map(|error| error.msg), None, "{damage}");
        let now = self.handles();
        let changed: Vec<_> = sound.iter().filter(|line| !now.contains(line)).collect();
        assert!(changed.is_empty(), "{damage}: {changed:#?}");
        self.repair_what_check_refuses(&self.neighbour, damage);
        assert_eq!(self.state(), *before, "{damage}");
        // A second repair finds nothing to do.
        let now = self.handles();
        self.repair(&self.server);
        assert_eq!((self.handles(), self.state()), (now, before.clone()), "{damage}");
        why
    }

    /// Ends both attachments. Nothing of them is left.
    fn end(self) {
        for pod in [&self.server, &self.neighbour] {
            self.ctx.runtime().del(&pod.network, &pod.attachment).unwrap();
        }
        assert_eq!(self.world.count(), 0, "{}", self.world.table());
        let left: Vec<_> = self
            .state()
            .into_iter()
            .filter(|line| line.contains("CNI-DN") || line.contains("/eth0/"))
            .collect();
        assert_eq!(left, [""; 0]);
    }
}

/// A connection to the neighbour's host port that stays open.
fn connection(scene: &Scene<'_>) -> TcpStream {
    echo(&scene.neighbour, 81);
    let to = SocketAddr::new(scene.world.address(false), 9081);
    scene.world.outside[0].run(|| TcpStream::connect(to)).unwrap().unwrap()
}

/// Each damage, and words of the error of CHECK.
const NFTABLES: [(&str, &str); 19] = [
    ("nft flush ruleset", "no element"),
    ("nft delete table inet cni_portmap", "no element"),
    ("nft flush table inet cni_portmap", "prerouting"),
    ("nft flush chain inet cni_portmap hostports", "hostports"),
    ("nft flush chain inet cni_portmap local", "local"),
    ("nft flush chain inet cni_portmap output", "output"),
    ("nft flush chain inet cni_portmap postrouting", "postrouting"),
    ("nft 'flush chain inet cni_portmap prerouting; delete chain inet cni_portmap prerouting'", "prerouting"),
    ("nft 'flush chain inet cni_portmap guard; delete chain inet cni_portmap guard'", "guard"),
    ("nft insert rule inet cni_portmap guard accept", "guard"),
    ("nft flush chain inet cni_portmap foreign-marks", "foreign-marks"),
    ("nft flush map inet cni_portmap dnat4", "no element"),
    ("nft flush set inet cni_portmap owners", "not in set"),
    ("nft delete element inet cni_portmap dnat4 '{ tcp . 8080 }'", "8080/tcp (IPv4)"),
    ("nft delete element inet cni_portmap dnat6 '{ udp . 8080 }'", "8080/udp (IPv6)"),
    ("nft delete element inet cni_portmap dnat4_ip '{ 192.0.2.1 . tcp . 9080 }'", "192.0.2.1:9080/tcp"),
    ("nft delete element inet cni_portmap mark6 '{ tcp . 8080 }'", "mark6"),
    ("echo 0 > /proc/sys/net/ipv4/conf/cni0/route_localnet", "route_localnet"),
    ("nft delete table inet cni_portmap; echo 0 > /proc/sys/net/ipv4/conf/cni0/route_localnet", "no element"),
];

#[test]
fn host_ports_of_nftables() {
    let world = World::new();
    let scene = Scene::new(&world, json!({}), "nft");
    let (before, connection) = (scene.state(), connection(&scene));
    for (damage, words) in NFTABLES {
        let why = scene.mends(damage, &before);
        assert!(why.contains(words), "{damage}: {why}");
        scene.serves(damage);
        echoes(&connection, damage);
    }
    scene.end();
}

/// The chains and maps of a network with conditions, which are its own.
#[test]
fn host_ports_with_conditions() {
    let world = World::new();
    let keys =
        json!({"masqAll": true, "markMasqBit": 3, "conditionsV4": ["ip saddr != { 10.9.9.9, 10.9.9.8 }"]});
    let scene = Scene::new(&world, keys, "nft");
    let before = scene.state();
    let table = world.table();
    let chain = table.split("chain ").find(|chain| chain.starts_with("network4-")).unwrap();
    let chain = chain.split_once(' ').unwrap().0;
    for (damage, words) in [
        ("nft delete table inet cni_portmap".to_owned(), "no element"),
        ("nft flush chain inet cni_portmap networks".to_owned(), "networks"),
        ("nft flush chain inet cni_portmap postrouting".to_owned(), "postrouting"),
        ("nft flush chain inet cni_portmap MARK-MASQ-3".to_owned(), "MARK-MASQ-3"),
        (format!("nft flush chain inet cni_portmap {chain}"), "network4-"),
    ] {
        let why = scene.mends(&damage, &before);
        assert!(why.contains(words), "{damage}: {why}");
        scene.serves(&damage);
    }
    scene.end();
}

/// `iptables` stands for the programs of the variant. `CHAIN` is the server's.
const IPTABLES: [(&str, &str); 10] = [
    ("iptables -t nat -F; ip6tables -t nat -F", "CNI-HOSTPORT"),
    ("iptables -t nat -F; iptables -t nat -X", "chain"),
    ("ip6tables -t nat -F; ip6tables -t nat -X", "ipv6"),
    ("iptables -t nat -F CHAIN", "wrong position"),
    ("ip6tables -t nat -D CHAIN 1", "wrong position"),
    ("iptables -t nat -A CHAIN -j RETURN", "unexpected rule"),
    ("iptables -t nat -F CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-DNAT"),
    ("iptables -t nat -F CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-SETMARK"),
    ("iptables -t nat -D OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT", "OUTPUT"),
    ("echo 0 > /proc/sys/net/ipv4/conf/cni0/route_localnet", "route_localnet"),
];

#[test]
fn host_ports_of_iptables() {
    for name in VARIANTS {
        let world = World::new();
        let scene = Scene::new(&world, json!({"backend": "iptables"}), name);
        let (before, connection) = (scene.state(), connection(&scene));
        let chain = chain_of(&scene);
        for (damage, words) in IPTABLES {
            let damage = damage.replace("iptables", &format!("iptables-{name}"));
            let damage = damage.replace("ip6tables", &format!("ip6tables-{name}")).replace("CHAIN", &chain);
            let why = scene.mends(&damage, &before);
            assert!(why.contains(words), "{damage}: {why}");
            scene.serves(&damage);
            echoes(&connection, &damage);
        }
        if name == "nft" {
            scene.mends("nft flush ruleset", &before);
        }
        scene.end();
    }
}

/// The server's chain of iptables.
fn chain_of(scene: &Scene<'_>) -> String {
    let saved: Vec<String> = VARIANTS.iter().map(|name| saved(&scene.world.node, name)).collect();
    let saved = saved.concat();
    let jump = saved.lines().find(|line| line.contains("id: \\\"server\\\"")).unwrap();
    jump.split_once("-j ").unwrap().1.to_owned()
}

/// Another container has the host port by now, by each backend. A dead one does not count in our table.
#[test]
fn host_port_of_another_container() {
    for (ours, theirs) in [
        ("nftables", "nftables"),
        ("nftables", "iptables"),
        ("iptables", "nftables"),
        ("iptables", "iptables"),
    ] {
        let world = World::new();
        let scene = Scene::new(&world, json!({"backend": ours}), "nft");
        world.nft("flush ruleset");
        let other = world.add_by(&scene.ctx, "other", &pods(json!({"backend": theirs})), &both(8080, 80));
        other.serve(80);
        let before = scene.handles();
        let error = scene.repair.fail("ADD", &scene.server.attachment, &scene.server.config());
        let words = "host port 8080/tcp (IPv4) is held by container other";
        assert!(error.msg.starts_with(words), "{ours}, {theirs}: {error}");
        assert_eq!(scene.handles(), before, "{ours}, {theirs}");
        scene.repair(&scene.neighbour);
        let answer = ask(&world.outside[0], "tcp", SocketAddr::new(world.address(false), 8080));
        assert_eq!(answer, Ok("other 192.0.2.2".to_owned()));
        if theirs == "nftables" {
            // Its namespace is gone; its DEL was lost.
            other.pod.delete().unwrap();
            scene.repair(&scene.server);
            scene.serves(&format!("{ours} after {theirs}"));
        }
    }
}

/// Another container has got the address of the server, whose DEL was lost, and its host port.
#[test]
fn address_of_another_container() {
    let world = World::new();
    let scene = Scene::new(&world, json!({}), "nft");
    world.nft("flush ruleset");
    let other = world.pod("other");
    scene.ctx.add(&other.attachment("eth0"), &scene.server.config());
    let before = scene.handles();
    let error = scene.repair.fail("ADD", &scene.server.attachment, &scene.server.config());
    assert!(error.msg.contains("is held by container other"), "{error}");
    assert_eq!(scene.handles(), before);
}

/// Rules of iptables that this backend has not made, such as the reference's, give way to our table, even after a kill.
#[test]
fn rules_of_another_backend_give_way() {
    let world = World::new();
    let scene = Scene::new(&world, json!({"backend": "iptables"}), "nft");
    let mut config = scene.server.config();
    config["backend"] = json!("nftables");
    config["runtimeConfig"]["portMappings"] = json!([mapping("tcp", "", 8080, 80)]);
    let attachment = &scene.server.attachment;
    let again = || {
        world.ctx.del(attachment, &config);
        world.with_programs(scene._programs.path()).add(attachment, &scene.server.config());
        scene.damage(&format!("iptables-nft -t nat -F {}", chain_of(&scene)));
    };
    again();
    let points = scene.repair.kill_points("ADD", attachment, &config);
    let check = || scene.ctx.call("CHECK", attachment, &config).success();
    let left = || saved(&world.node, "nft").contains("id: \\\"server\\\"");
    assert!(check() && !left());
    let first = Random::seeded().below(4);
    for point in points.iter().skip(first).step_by(4) {
        again();
        scene.repair.kill(point, "ADD", attachment, &config);
        if !check() {
            scene.repair.add(attachment, &config);
        }
        assert!(check() && !left(), "killed {point}");
    }
}

/// A client that goes on sending reaches a server on the node while the host port is gone, and the pod after repair.
#[test]
fn flows_that_point_astray_after_each_kill() {
    for (backend, name, damage) in [
        ("nftables", "nft", "nft delete table inet cni_portmap"),
        ("nftables", "nft", "nft delete element inet cni_portmap dnat4 '{ udp . 8080 }'"),
        ("iptables", "nft", "nft flush chain ip nat CNI-HOSTPORT-DNAT"),
        ("iptables", "legacy", "iptables-legacy -t nat -F; iptables-legacy -t nat -X"),
    ] {
        let world = World::new();
        let scene = Scene::new(&world, json!({"backend": backend}), name);
        let to = SocketAddr::new(world.address(false), 8080);
        serve_at(&world.node, "node", to);
        let (before, config) = (scene.state(), scene.server.config());
        let attachment = &scene.server.attachment;
        scene.damage(damage);
        let points = scene.repair.kill_points("ADD", attachment, &config);
        // A part of the points; `FERRULE_SEED` repeats the choice.
        let part = if backend == "nftables" { 3 } else { 8 };
        let first = Random::seeded().below(part);
        // All clients stay open. The kernel may give the port of a closed one to the next, whose packets then belong to the
        // former flow to the server.
        let mut clients = Vec::new();
        for point in points.iter().skip(first).step_by(part) {
            clients.push(udp_socket(&world.outside[0], to));
            let client = clients.last().unwrap();
            let ask = || udp_ask(client, TIMEOUT).unwrap_or_else(|error| error.to_string());
            scene.damage(damage);
            assert_eq!(ask(), "node 192.0.2.2", "{damage}");
            scene.repair.kill(point, "ADD", attachment, &config);
            let what = format!("{damage}, killed {point}");
            scene.repair_what_check_refuses(&scene.server, &what);
            scene.repair_what_check_refuses(&scene.neighbour, &what);
            assert_eq!(scene.state(), before, "{what}");
            let answer = ask();
            let filter = Filter { family: IpFamily::V4, proto: UDP, dst_port: Some(8080) };
            let tracked = world.node.run(|| flows(&mut Socket::netfilter().unwrap(), filter)).unwrap();
            assert_eq!(answer, "server 192.0.2.2", "{what}: {tracked:?}");
        }
        scene.end();
    }
}

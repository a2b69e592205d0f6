//! Repair of what another program has removed from a firewall. The tests need root, `nft`, `strace`, both variants of
//! `iptables`, `dbus-daemon` and `firewalld`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use cni_lab::testing::iptables::{VARIANTS, variant};
use cni_lab::testing::{Added, Expect as _, Firewalld, Random, TestContext, serve};
use cni_lab::{Place as _, TIMEOUT};
use common::{World, expect, pods, repairing, saved};
use serde_json::json;
use tempfile::TempDir;

/// A node whose chains `FORWARD` drop packets, and two pods: the tests damage what opens the first one.
struct Scene<'w> {
    world: &'w World,
    variant: &'static str,
    ctx: TestContext,
    repair: TestContext,
    pod: Added<'w>,
    neighbour: Added<'w>,
    _programs: TempDir,
}

impl<'w> Scene<'w> {
    fn new(world: &'w World, backend: &str, name: &'static str) -> Self {
        let programs = variant(name);
        let ctx = world.with_programs(programs.path());
        let repair = repairing(&ctx);
        if backend != "firewalld" {
            world.node.sh(&closed(name)).unwrap();
        }
        let network = pods(json!({"backend": backend, "ingressPolicy": "isolated"}));
        let add = |name: &str| world.add_by(&ctx, name, &network, &json!([]));
        let (pod, neighbour) = (add("pod"), add("neighbour"));
        for outside in &world.outside {
            serve(outside, "outside", 80);
        }
        Scene { world, variant: name, ctx, repair, pod, neighbour, _programs: programs }
    }

    fn check(&self, pod: &Added<'_>) -> Result<(), String> {
        let output = self.ctx.call("CHECK", &pod.attachment, &pod.config());
        if output.success() { Ok(()) } else { Err(output.error().msg) }
    }

    fn repair(&self, pod: &Added<'_>) {
        self.repair.add(&pod.attachment, &pod.config());
    }

    /// What `ferrule repair` does.
    fn repair_what_check_refuses(&self, what: &str) {
        for pod in [&self.pod, &self.neighbour] {
            if self.check(pod).is_err() {
                self.repair(pod);
                assert_eq!(self.check(pod), Ok(()), "{what}");
            }
        }
    }

    /// The content of all tables, in any order.
    fn state(&self) -> BTreeSet<String> {
        let all = self.world.listing() + &saved(self.world, self.variant);
        let all = all.replace("elements = {", ",").replace('}', ",");
        all.split([',', '\n']).map(|line| line.trim().to_owned()).collect()
    }

    /// The handles of all chains and rules.
    fn handles(&self) -> Vec<String> {
        let listing = self.world.node.tool("nft", &["-a", "-s", "list", "ruleset"]).unwrap();
        listing.lines().filter(|line| line.contains("# handle")).map(str::to_owned).collect()
    }

    /// Panics unless both pods reach the outside in both families.
    fn is_open(&self, what: &str) {
        for pod in [&self.pod, &self.neighbour] {
            for outside in &self.world.outside {
                expect(&pod.pod, SocketAddr::new(outside.address(), 80), true, what);
            }
        }
    }

    /// Damages, repairs and compares. Returns the error of CHECK.
    fn mends(&self, damage: &str, before: &BTreeSet<String>) -> String {
        self.world.node.sh(damage).unwrap();
        let why = self.check(&self.pod).expect_err(damage);
        let damaged = self.handles();
        self.repair(&self.pod);
        assert_eq!(self.check(&self.pod), Ok(()), "{damage}");
        if damage.contains(" element ") || damage.contains(" set ") {
            assert_eq!(self.handles(), damaged, "{damage}");
        }
        self.repair_what_check_refuses(damage);
        assert_eq!(self.state(), *before, "{damage}");
        // A second repair finds nothing to do.
        let now = self.handles();
        self.repair(&self.pod);
        assert_eq!((self.handles(), self.state()), (now, before.clone()), "{damage}");
        self.is_open(damage);
        why
    }

    /// Ends both attachments. Nothing of them is left.
    fn end(&self) {
        for pod in [&self.pod, &self.neighbour] {
            self.ctx.runtime().del(&pod.network, &pod.attachment).unwrap();
        }
        let left: Vec<_> = self.state().into_iter().filter(|line| line.contains("10.1.0.")).collect();
        assert_eq!(left, [""; 0]);
    }
}

/// The commands that make both chains `FORWARD` drop packets.
fn closed(variant: &str) -> String {
    format!("iptables-{variant} -P FORWARD DROP; ip6tables-{variant} -P FORWARD DROP")
}

/// Writes the programs of the variant into a command.
fn by(damage: &str, variant: &str) -> String {
    damage.replace("I4", &format!("iptables-{variant}")).replace("I6", &format!("ip6tables-{variant}"))
}

/// A connection of the neighbour that stays open.
fn connection(scene: &Scene<'_>) -> TcpStream {
    let outside = &scene.world.outside[0];
    let listener = outside.run(|| TcpListener::bind("0.0.0.0:81")).unwrap().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
    let to = SocketAddr::new(outside.address(), 81);
    let stream = scene.neighbour.pod.run(|| TcpStream::connect(to)).unwrap().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn echoes(mut stream: &TcpStream, what: &str) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Each damage, and words of the error of CHECK. `I4` and `I6` are the programs of the variant.
const NFTABLES: [(&str, &str); 18] = [
    ("nft flush ruleset; CLOSED", "is missing in the sets"),
    ("nft delete table inet cni_firewall", "is missing in the sets"),
    ("nft flush table inet cni_firewall", "mark-20"),
    ("nft 'flush chain inet cni_firewall forward; delete chain inet cni_firewall forward'", "forward"),
    ("nft 'flush chain inet cni_firewall forward; delete chain inet cni_firewall admin'", "admin"),
    ("nft insert rule inet cni_firewall forward accept", "forward"),
    ("nft 'flush chain inet cni_firewall unmark; add rule inet cni_firewall unmark accept'", "unmark"),
    ("nft delete element inet cni_firewall pods4 '{ 10.1.0.2 }'", "10.1.0.2 is missing"),
    ("nft delete element inet cni_firewall pods6 '{ fd00::2 }'", "fd00::2 is missing"),
    ("nft flush set inet cni_firewall pods6", "fd00::2 is missing"),
    ("nft flush set inet cni_firewall noicc", "noicc"),
    ("I4 -F; I6 -F", "FERRULE-FORWARD"),
    ("I4 -F FORWARD", "FERRULE-FORWARD"),
    ("I6 -D FORWARD -j FERRULE-FORWARD", "FERRULE-FORWARD"),
    ("I4 -F FERRULE-FORWARD", "FERRULE-FORWARD"),
    ("I4 -F FERRULE-FORWARD; I4 -A FERRULE-FORWARD -j RETURN", "FERRULE-FORWARD"),
    ("I4 -F; I4 -X; I6 -F; I6 -X", "FORWARD"),
    ("bridge link set dev PORT isolated off", "not isolated"),
];

#[test]
fn addresses_of_nftables() {
    for name in VARIANTS {
        let world = World::new();
        let scene = Scene::new(&world, "nftables", name);
        let (before, connection) = (scene.state(), connection(&scene));
        let port = scene.pod.result["interfaces"][1]["name"].as_str().unwrap();
        for (damage, words) in NFTABLES {
            let damage = by(damage, name).replace("CLOSED", &closed(name)).replace("PORT", port);
            let why = scene.mends(&damage, &before);
            assert!(why.contains(words), "{damage}: {why}");
            echoes(&connection, &damage);
        }
        scene.end();
    }
}

const IPTABLES: [(&str, &str); 9] = [
    ("I4 -F; I6 -F", "CNI-FORWARD"),
    ("I4 -F; I4 -X", "CNI-FORWARD"),
    ("I6 -F CNI-FORWARD", "CNI-ADMIN"),
    ("I4 -D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT", "10.1.0.2"),
    ("I4 -F CNI-ISOLATION-STAGE-1", "ingressPolicy"),
    ("I4 -D FORWARD -j FERRULE-FORWARD", "FERRULE-FORWARD"),
    ("nft delete element inet cni_firewall others6 '{ fd00::2 }'", "fd00::2"),
    ("nft flush chain inet cni_firewall forward", "forward"),
    ("bridge link set dev PORT isolated off", "not isolated"),
];

#[test]
fn addresses_of_iptables() {
    for name in VARIANTS {
        let world = World::new();
        let scene = Scene::new(&world, "iptables", name);
        let (before, connection) = (scene.state(), connection(&scene));
        let port = scene.pod.result["interfaces"][1]["name"].as_str().unwrap();
        for (damage, words) in IPTABLES {
            let damage = by(damage, name).replace("PORT", port);
            let why = scene.mends(&damage, &before);
            assert!(why.contains(words), "{damage}: {why}");
            echoes(&connection, &damage);
        }
        if name == "nft" {
            scene.mends(&format!("nft flush ruleset; {}", closed(name)), &before);
        }
        scene.end();
    }
}

/// A reload or a restart of firewalld forgets the sources of its zones.
#[test]
fn sources_of_firewalld() {
    let world = World::new();
    let mut firewalld = Firewalld::start(&world.node);
    let scene = Scene::new(&world, "firewalld", "nft");
    let sources = |firewalld: &Firewalld| -> BTreeSet<String> {
        firewalld.cmd("--zone=trusted --list-sources").split(' ').map(str::to_owned).collect()
    };
    let before = sources(&firewalld);
    assert_eq!(before.len(), 4);
    for damage in ["--zone=trusted --remove-source=10.1.0.2/32", "--reload", "restart"] {
        if damage == "restart" {
            firewalld.stop_daemon();
            firewalld.start_daemon();
        } else {
            firewalld.cmd(damage);
        }
        let why = scene.check(&scene.pod).unwrap_err();
        assert_eq!(why, "failed to find the address 10.1.0.2/32 in trusted zone", "{damage}");
        scene.repair_what_check_refuses(damage);
        assert_eq!(sources(&firewalld), before, "{damage}");
        scene.is_open(damage);
    }
    // firewalld does not remove the rules of one that was killed.
    firewalld.cmd("--reload");
    scene.repair_what_check_refuses("another reload");
    scene.end();
    assert_eq!(firewalld.cmd("--zone=trusted --list-sources"), "");
}

/// Another container has got the address by now, by each backend.
#[test]
fn address_of_another_container() {
    for ours in ["nftables", "iptables"] {
        for theirs in ["nftables", "iptables"] {
            let world = World::new();
            let scene = Scene::new(&world, ours, "nft");
            world.node.sh("nft delete table inet cni_firewall; iptables-nft -F; ip6tables-nft -F").unwrap();
            let other = world.pod("other");
            let mut config = scene.pod.config();
            config["backend"] = json!(theirs);
            scene.ctx.add(&other.attachment("eth0"), &config);
            let before = (scene.handles(), scene.state());
            let error = scene.repair.fail("ADD", &scene.pod.attachment, &scene.pod.config());
            let words = "address 10.1.0.2 belongs to container other (interface eth0 on network pods)";
            assert!(error.msg.ends_with(words), "{ours}, {theirs}: {error}");
            assert_eq!((scene.handles(), scene.state()), before, "{ours}, {theirs}");
        }
    }
}

/// The next repair completes one that was killed, and there is no state in which CHECK agrees too early.
#[test]
fn killed_repair() {
    for (backend, damage) in [
        ("nftables", "nft flush ruleset; CLOSED"),
        ("nftables", "iptables-nft -F; ip6tables-nft -F; nft flush set inet cni_firewall pods4"),
        ("iptables", "nft flush ruleset; CLOSED"),
        ("iptables", "iptables-nft -F CNI-FORWARD"),
    ] {
        let damage = damage.replace("CLOSED", &closed("nft"));
        let world = World::new();
        let scene = Scene::new(&world, backend, "nft");
        let (before, config) = (scene.state(), scene.pod.config());
        let damaged = || world.node.sh(&damage).unwrap();
        damaged();
        let points = scene.repair.kill_points("ADD", &scene.pod.attachment, &config);
        // A part of the points; `FERRULE_SEED` repeats the choice.
        let part = if backend == "nftables" { 3 } else { 6 };
        let first = Random::seeded().below(part);
        for point in points.iter().skip(first).step_by(part) {
            damaged();
            scene.repair.kill(point, "ADD", &scene.pod.attachment, &config);
            let what = format!("{backend}, {damage}, killed {point}");
            scene.repair_what_check_refuses(&what);
            assert_eq!(scene.state(), before, "{what}");
        }
        scene.is_open(&damage);
        scene.end();
    }
}

//! A runtime that has lost patience kills the plugin with SIGKILL, at any kill_point. A DEL or a GC after that
//! removes everything. They need root, `nft`, `strace` and both variants of `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::{KillPoint, Place as _};
use cni_runner::{Attachment, Exec};
use common::ipvs::{Balancer, KubeProxy};
use common::programs::{self, VARIANTS, saved, variant};
use common::{Added, World, both, pods};
use serde_json::{Value, json};

/// A container of which only portmap knows, on a node where another one has host ports.
struct Lab<'w> {
    base: Added<'w>,
    config: Value,
    path: String,
}

impl<'w> Lab<'w> {
    fn new(world: &'w World, keys: Value, path: &str) -> Lab<'w> {
        let base = world.add("base", &pods(keys), &json!([]));
        let mut config = base.config();
        config["runtimeConfig"]["portMappings"] = both(8080, 80);
        // For GC; no other verb looks at it.
        config["cni.dev/valid-attachments"] = json!([{"containerID": "other", "ifname": "eth0"}]);
        Lab { base, config, path: path.to_owned() }
    }

    fn exec(&self, verb: &str, container: &str) -> Exec {
        let attachment = Attachment::new(container, self.base.attachment.netns.clone(), "eth0");
        Exec::new(self.base.world.bins.path().join("portmap"), verb)
            .attachment(&attachment)
            .env("PATH", &self.path)
            .stdin(self.config.to_string())
    }

    /// A call that has to do.
    fn call(&self, verb: &str, container: &str) {
        let output = self.base.world.node.call(&self.exec(verb, container)).unwrap();
        assert!(output.success(), "{verb} of {container}: {}", output.stdout_text());
    }

    /// The kill_points of a call, which is made for that.
    fn kill_points(&self, verb: &str, container: &str) -> Vec<KillPoint> {
        KillPoint::all(&self.base.world.node, &self.exec(verb, container)).unwrap()
    }

    fn kill(&self, verb: &str, container: &str, kill_point: &KillPoint) {
        kill_point.kill(&self.base.world.node, &self.exec(verb, container)).unwrap();
    }

    /// What all tables hold.
    fn state(&self) -> String {
        self.base.world.listing() + &saved(self.base.world, "legacy")
    }
}

/// What comes after a killed call: a verb with its container, or nothing.
const REMOVALS: [Option<(&str, &str)>; 3] = [Some(("DEL", "killed")), Some(("GC", "")), None];

/// A node of that backend, on which another container's host ports are: they have to stay, and nothing else.
fn killed_on(keys: &Value, path: &str) {
    let world = World::new();
    let mut lab = Lab::new(&world, keys.clone(), path);
    lab.call("ADD", "other");
    lab.config["runtimeConfig"]["portMappings"] = both(8081, 80);
    let verbs = ["ADD", "DEL"].map(|verb| (verb, lab.kill_points(verb, "measured")));
    let before = lab.state();
    for (verb, kill_points) in verbs {
        for (kill_point, removal) in
            kill_points.iter().flat_map(|kill_point| REMOVALS.map(|removal| (kill_point, removal)))
        {
            if verb == "DEL" {
                lab.call("ADD", "killed");
            }
            lab.kill(verb, "killed", kill_point);
            if let Some((removal, container)) = removal {
                lab.call(removal, container);
                assert_eq!(lab.state(), before, "{removal} after {verb} killed {kill_point}");
            }
            // Whatever is left, the next container gets the port, or this one at a second try.
            lab.call("ADD", "killed");
            lab.call("CHECK", "killed");
            lab.call("DEL", "killed");
            assert_eq!(lab.state(), before, "{verb} killed {kill_point}");
        }
    }
}

#[test]
fn at_any_moment_by_nf_tables() {
    killed_on(&json!({}), "/usr/sbin:/usr/bin:/sbin:/bin");
}

#[test]
fn at_any_moment_by_iptables() {
    for name in VARIANTS {
        let programs = variant(name);
        killed_on(&json!({"backend": "iptables"}), &programs.path().display().to_string());
    }
}

/// An ADD that finds kube-proxy in IPVS mode, and the GC that finds it gone.
fn while_kube_proxy_comes_and_goes(variant: &'static str) {
    let world = World::new();
    let programs = programs::variant(variant);
    let mut lab = Lab::new(&world, json!({}), &programs.path().display().to_string());
    lab.call("ADD", "other");
    lab.config["runtimeConfig"]["portMappings"] = both(8081, 80);
    let proxy = KubeProxy { world: &world, variant, balancer: Balancer::Listeners };
    proxy.start();
    let comes = lab.kill_points("ADD", "measured");
    lab.call("CHECK", "measured");
    lab.call("DEL", "measured");
    proxy.clean_up();
    let goes = lab.kill_points("GC", "");
    // From here on the order of the table's chains stays.
    let before = lab.state();
    assert!(before.contains("chain local") && !before.contains("FERRULE"), "{before}");
    for (verb, kill_points) in [("ADD", comes), ("GC", goes)] {
        for kill_point in kill_points {
            proxy.start();
            if verb == "ADD" {
                lab.kill(verb, "killed", &kill_point);
            }
            lab.call("ADD", "killed");
            lab.call("CHECK", "killed");
            lab.call("DEL", "killed");
            proxy.clean_up();
            if verb == "GC" {
                lab.kill(verb, "", &kill_point);
            }
            lab.call("GC", "");
            assert_eq!(lab.state(), before, "{variant}, {verb} killed {kill_point}");
        }
    }
}

#[test]
fn while_kube_proxy_comes_and_goes_with_iptables_nft() {
    while_kube_proxy_comes_and_goes("nft");
}

#[test]
fn while_kube_proxy_comes_and_goes_with_iptables_legacy() {
    while_kube_proxy_comes_and_goes("legacy");
}

/// The first ADD of all, which makes the table.
#[test]
fn the_first_add_of_a_node() {
    const PATH: &str = "/usr/sbin:/usr/bin";
    let measured = World::new();
    for kill_point in Lab::new(&measured, json!({}), PATH).kill_points("ADD", "first") {
        let world = World::new();
        let lab = Lab::new(&world, json!({}), PATH);
        lab.kill("ADD", "first", &kill_point);
        lab.call("DEL", "first");
        assert_eq!(world.count(), 0, "killed {kill_point}");
        lab.call("ADD", "first");
        lab.call("CHECK", "first");
    }
}

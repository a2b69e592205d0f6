//! Kills the plugin with SIGKILL at each kill point, as a runtime does after a timeout. A following DEL or GC
//! removes everything. The tests need root, `nft`, `strace` and both variants of `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use cni_lab::testing::Added;
use cni_lab::testing::TestContext;
use cni_lab::testing::iptables::{self, VARIANTS, saved, variant};
use cni_lab::{KillPoint, WaysOn};
use cni_runner::Attachment;
use common::ipvs::{Balancer, KubeProxy};
use common::{World, both, pods};
use serde_json::{Value, json};

/// The configuration of containers that exist only for portmap, on a node with one real pod.
struct Scene<'w> {
    ctx: TestContext,
    base: Added<'w>,
    config: Value,
}

impl<'w> Scene<'w> {
    /// The plugin looks for programs only in this folder.
    fn new(world: &'w World, keys: Value, programs: &Path) -> Scene<'w> {
        let base = world.add("base", &pods(keys), &json!([]));
        let mut config = base.config();
        config["runtimeConfig"]["portMappings"] = both(8080, 80);
        // Only GC reads this key.
        config["cni.dev/valid-attachments"] = json!([{"containerID": "other", "ifname": "eth0"}]);
        Scene { ctx: world.with_programs(programs), base, config }
    }

    fn attachment(&self, container: &str) -> Attachment {
        Attachment::new(container, self.base.attachment.netns.clone(), "eth0")
    }

    /// The container that stays has an address of its own.
    fn config(&self, container: &str) -> Value {
        let mut config = self.config.clone();
        if container == "other" {
            config["prevResult"]["ips"][0]["address"] = json!("10.1.0.100/24");
            config["prevResult"]["ips"][1]["address"] = json!("fd00::100/64");
        }
        config
    }

    /// Makes a call that must succeed.
    fn call(&self, verb: &str, container: &str) {
        let output = self.ctx.call(verb, &self.attachment(container), &self.config(container));
        assert!(output.success(), "{verb} of {container}: {}", output.stdout_text());
    }

    /// Makes a call and returns its kill points.
    fn kill_points(&self, verb: &str, container: &str) -> Vec<KillPoint> {
        self.ctx.kill_points(verb, &self.attachment(container), &self.config)
    }

    fn kill(&self, verb: &str, container: &str, kill_point: &KillPoint) {
        self.ctx.kill(kill_point, verb, &self.attachment(container), &self.config);
    }

    /// The content of all tables.
    fn state(&self) -> String {
        self.base.world.listing() + &saved(&self.ctx.node, "legacy")
    }
}

/// What follows a killed call: a verb with its container, or nothing.
const REMOVALS: [Option<(&str, &str)>; 3] = [Some(("DEL", "killed")), Some(("GC", "")), None];

/// Kills ADD and DEL of a container, on a node where another container has host ports. Only those stay.
fn killed_on(keys: &Value, programs: &Path) {
    let world = World::new();
    let mut test = Scene::new(&world, keys.clone(), programs);
    test.call("ADD", "other");
    test.config["runtimeConfig"]["portMappings"] = both(8081, 80);
    let verbs = ["ADD", "DEL"].map(|verb| (verb, test.kill_points(verb, "measured")));
    let before = test.state();
    for (verb, kill_points) in verbs {
        let mut ways_on = WaysOn::default();
        for kill_point in kill_points {
            let kill = || {
                if verb == "DEL" {
                    test.call("ADD", "killed");
                }
                test.kill(verb, "killed", &kill_point);
            };
            kill();
            for (number, removal) in ways_on.after(test.state(), &REMOVALS).iter().enumerate() {
                if number > 0 {
                    kill();
                }
                match removal {
                    Some((removal, container)) => test.call(removal, container),
                    // The next ADD succeeds, even without DEL or GC.
                    None => ["ADD", "CHECK", "DEL"].iter().for_each(|verb| test.call(verb, "killed")),
                }
                assert_eq!(test.state(), before, "{removal:?} after {verb} killed {kill_point}");
            }
        }
    }
}

#[test]
fn killed_with_nf_tables() {
    killed_on(&json!({}), Path::new("/usr/sbin"));
}

#[test]
fn killed_with_iptables() {
    for name in VARIANTS {
        let programs = variant(name);
        killed_on(&json!({"backend": "iptables"}), programs.path());
    }
}

/// Kills the ADD that finds kube-proxy in IPVS mode for the first time, and the GC that finds it gone.
fn killed_after_kube_proxy_started_or_stopped(variant: &'static str) {
    let world = World::new();
    let programs = iptables::variant(variant);
    let mut test = Scene::new(&world, json!({}), programs.path());
    test.call("ADD", "other");
    test.config["runtimeConfig"]["portMappings"] = both(8081, 80);
    let proxy = KubeProxy { world: &world, variant, balancer: Balancer::Listeners };
    proxy.start();
    let add_points = test.kill_points("ADD", "measured");
    test.call("CHECK", "measured");
    test.call("DEL", "measured");
    proxy.clean_up();
    let gc_points = test.kill_points("GC", "");
    // From here on, the order of the table's chains does not change.
    let before = test.state();
    assert!(before.contains("chain local") && !before.contains("FERRULE"), "{before}");
    let pass_by = || ["ADD", "CHECK", "DEL"].iter().for_each(|verb| test.call(verb, "killed"));
    for (verb, kill_points) in [("ADD", add_points), ("GC", gc_points)] {
        let prepare = || {
            proxy.start();
            if verb == "GC" {
                pass_by();
                proxy.clean_up();
            }
            test.state()
        };
        let finish = |what: &dyn Display| {
            if verb == "ADD" {
                pass_by();
                proxy.clean_up();
            }
            test.call("GC", "");
            assert_eq!(test.state(), before, "{variant}, {verb} killed {what}");
        };
        let (mut prepared, mut seen) = (None, BTreeSet::new());
        for kill_point in &kill_points {
            let untouched = prepared.take().unwrap_or_else(prepare);
            test.kill(verb, if verb == "ADD" { "killed" } else { "" }, kill_point);
            let left = test.state();
            // The killed call has changed nothing, and what follows then is known: the next one may be killed right away.
            if !seen.insert(left.clone()) && left == untouched {
                prepared = Some(untouched);
            } else {
                finish(kill_point);
            }
        }
        if prepared.is_some() {
            finish(&"at last");
        }
    }
}

#[test]
fn killed_after_kube_proxy_started_or_stopped_with_iptables_nft() {
    killed_after_kube_proxy_started_or_stopped("nft");
}

#[test]
fn killed_after_kube_proxy_started_or_stopped_with_iptables_legacy() {
    killed_after_kube_proxy_started_or_stopped("legacy");
}

/// Kills the first ADD of a node, which creates the table.
#[test]
fn killed_first_add_of_a_node() {
    let programs = Path::new("/usr/sbin");
    let measured = World::new();
    for kill_point in Scene::new(&measured, json!({}), programs).kill_points("ADD", "first") {
        let world = World::new();
        let test = Scene::new(&world, json!({}), programs);
        test.kill("ADD", "first", &kill_point);
        test.call("DEL", "first");
        assert_eq!(world.count(), 0, "killed {kill_point}");
        test.call("ADD", "first");
        test.call("CHECK", "first");
    }
}

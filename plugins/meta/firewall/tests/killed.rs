//! Kills the plugin with SIGKILL before each system call that is visible outside of the process. A following DEL or GC removes
//! everything. The tests need root, `nft`, `strace`, both variants of `iptables`, `dbus-daemon` and `firewalld`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;

use cni_lab::testing::iptables::{VARIANTS, variant};
use cni_lab::testing::{Firewalld, overlay};
use cni_lab::{Place as _, WaysOn};
use cni_runner::Attachment;
use common::{World, pods, saved};
use serde_json::json;

/// What follows a killed call. The next ADD succeeds without DEL or GC.
const WAYS: [&str; 4] = ["DEL", "DEL without prevResult", "GC", "ADD"];

/// Kills ADD and DEL of a container on a node where another container has rules. Only those stay.
fn killed_with(world: &World, backend: &str, programs: &Path, state: &dyn Fn() -> String) {
    let ctx = world.with_programs(programs);
    let base = world.add("base", &pods(json!({"backend": "nftables", "ingressPolicy": "isolated"})));
    let valid =
        json!([{"containerID": "base", "ifname": "eth0"}, {"containerID": "other", "ifname": "eth0"}]);
    let config = |address: &str| {
        let mut config =
            overlay(&base.config(), &json!({"backend": backend, "cni.dev/valid-attachments": valid}));
        config["prevResult"]["ips"] =
            json!([{"address": format!("10.1.0.{address}/24")}, {"address": format!("fd00::{address}/64")}]);
        config
    };
    let attachment = |name: &str| Attachment::new(name, base.attachment.netns.clone(), "eth0");
    ctx.add(&attachment("other"), &config("77"));
    let config = config("99");
    let killed = attachment("killed");
    let points = ["ADD", "DEL"].map(|verb| (verb, ctx.kill_points(verb, &killed, &config)));
    let state = || world.table() + &state();
    let before = state();
    assert!(before.contains("10.1.0.77") && !before.contains("10.1.0.99"), "{before}");
    for (verb, points) in points {
        let kill = |point| {
            if verb == "DEL" {
                ctx.add(&killed, &config);
            }
            ctx.kill(point, verb, &killed, &config);
        };
        let mut ways_on = WaysOn::default();
        for point in &points {
            kill(point);
            for (number, way) in ways_on.after(state(), &WAYS).iter().enumerate() {
                if number > 0 {
                    kill(point);
                }
                match *way {
                    "DEL" => ctx.del(&killed, &config),
                    "GC" => ctx.succeed("GC", &Attachment::default(), &config),
                    "ADD" => {
                        ctx.add(&killed, &config);
                        ctx.check(&killed, &config);
                        ctx.del(&killed, &config);
                    }
                    _ => ctx.del(&killed, &overlay(&config, &json!({"prevResult": null}))),
                }
                assert_eq!(state(), before, "{backend}: {way} after {verb} killed {point}");
            }
        }
    }
}

#[test]
fn killed_with_nftables() {
    let world = World::new();
    killed_with(&world, "nftables", Path::new("/usr/sbin"), &|| saved(&world, "nft"));
}

#[test]
fn killed_with_iptables() {
    for name in VARIANTS {
        let world = World::new();
        killed_with(&world, "iptables", variant(name).path(), &|| saved(&world, name));
    }
}

#[test]
fn killed_with_firewalld() {
    let world = World::new();
    let _firewalld = Firewalld::start(&world.node);
    // Its rules name the sources.
    let rules = || world.node.tool("nft", &["-s", "list", "table", "inet", "firewalld"]).unwrap();
    killed_with(&world, "firewalld", Path::new("/usr/sbin"), &rules);
}

/// The first ADD of a node, which makes the table and the forward chain.
#[test]
fn killed_first_add_of_a_node() {
    let scene = || {
        let world = World::new();
        world.node.sh("iptables-nft -P FORWARD DROP").unwrap();
        let mut config =
            json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall", "backend": "nftables"});
        config["prevResult"] = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.9/24"}]});
        let attachment = world.pod("first").attachment("eth0");
        (world, attachment, config)
    };
    let (measured, attachment, config) = scene();
    for point in measured.kill_points("ADD", &attachment, &config) {
        let (world, attachment, config) = scene();
        world.kill(&point, "ADD", &attachment, &config);
        world.ctx.del(&attachment, &config);
        assert_eq!(world.set("pods4"), "", "killed {point}");
        world.ctx.add(&attachment, &config);
        world.ctx.check(&attachment, &config);
    }
}

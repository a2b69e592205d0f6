//! Another container gets an address, on a bridge that was gone, while a removal is between two of its steps. Both stay. The
//! tests need root and `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::overlay;
use cni_runner::Attachment;
use common::World;
use serde_json::json;

#[test]
fn what_another_container_gets_during_a_removal_stays() {
    let world = World::new();
    let netns = world.pod("pod").attachment("eth0").netns;
    let [first, second] = ["first", "second"].map(|name| Attachment::new(name, netns.clone(), "eth0"));
    let config = json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall", "backend": "nftables",
        "ingressPolicy": "isolated", "cni.dev/valid-attachments": [{"containerID": "second", "ifname": "eth0"}],
        "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.9/24"}],
            "interfaces": [{"name": "cni0"}]}});
    let without_result = overlay(&config, &json!({"prevResult": null}));
    let bridge =
        |change: &str| world.node.sh(&format!("ip link {change} cni0 type bridge")).map(drop).unwrap();
    let leave = || {
        bridge("add");
        world.ctx.add(&first, &config);
        bridge("delete");
    };
    for (verb, config_of_removal) in [("DEL", &config), ("DEL", &without_result), ("GC", &without_result)] {
        leave();
        for point in world.kill_points(verb, &first, config_of_removal) {
            leave();
            world.pause(&point, verb, &first, config_of_removal, || {
                bridge("add");
                world.ctx.add(&second, &config);
            });
            let checked = world.call("CHECK", &second, &config);
            assert!(checked.success(), "{verb} stopped {point}: {}", checked.stdout_text());
            world.ctx.del(&second, &config);
            bridge("delete");
        }
    }
}

/// `iptables-restore` makes the table again. The handle of a rule is another rule's then.
#[test]
fn rules_of_a_table_that_is_made_again_stay() {
    let world = World::new();
    let make = |addresses: [&str; 2]| {
        let rules = addresses.map(|ip| format!("add rule ip filter CNI-FORWARD ip saddr {ip} accept\n"));
        let empty = "add table ip filter\ndelete table ip filter\nadd table ip filter\n";
        let text = format!("{empty}add chain ip filter CNI-FORWARD\n{}", rules.concat());
        world.node.write_file("/run/table.nft", &text).unwrap();
        world.node.tool("nft", &["-f", "/run/table.nft"]).unwrap();
    };
    let (first, second) = ("10.1.0.9", "10.1.0.8");
    let attachment = Attachment::new("first", "", "eth0");
    let config = json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall",
        "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": format!("{first}/24")}]}});
    make([first, second]);
    for point in world.pause_points("DEL", &attachment, &config) {
        make([first, second]);
        world.pause(&point, "DEL", &attachment, &config, || make([second, first]));
        let left = world.node.sh("nft list table ip filter").unwrap();
        assert!(left.contains(second), "stopped {point}: {left}");
    }
    make([first, second]);
    world.ctx.del(&attachment, &config);
    let left = world.node.sh("nft list table ip filter").unwrap();
    assert!(!left.contains(first), "{left}");
}

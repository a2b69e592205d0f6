//! The state after ADD, CHECK, DEL and GC with the nftables backend, read with `nft` and `iptables-save`. The tests need root.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{at_once, overlay};
use cni_runner::{Attachment, ValidAttachment};
use common::{World, expect, expect_pod, more, network_of, pods, saved};
use serde_json::{Value, json};
use std::net::SocketAddr;

const LISTED: &str = include_str!("listed.txt");

#[test]
fn listing_is_as_documented_and_can_be_loaded_again() {
    let world = World::new();
    let added = world.add("one", &pods(json!({"backend": "nftables", "ingressPolicy": "isolated"})));
    assert_eq!(world.table(), LISTED);
    world.node.write_file("/run/table", &world.table()).unwrap();
    world.node.sh("nft delete table inet cni_firewall && nft -f /run/table").unwrap();
    assert_eq!(world.table(), LISTED);
    assert_eq!(added.check(), Ok(()));
    added.del();
    assert_eq!((world.set("pods4"), world.set("pods6")), (String::new(), String::new()));
}

#[test]
fn check_names_the_missing_object_and_the_next_add_repairs_it() {
    let world = World::new();
    world.node.sh("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP").unwrap();
    let added = world.add("one", &pods(json!({"backend": "nftables", "ingressPolicy": "isolated"})));
    let port = added.result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    for (change, words) in [
        (
            "nft delete element inet cni_firewall pods4 { 10.1.0.2 }",
            "address 10.1.0.2 is missing in the sets",
        ),
        ("nft flush set inet cni_firewall pods6", "address fd00::2 is missing in the sets"),
        ("nft flush set inet cni_firewall guarded", "bridge \"cni0\" is missing in set \"guarded\""),
        ("nft flush set inet cni_firewall noicc", "set \"noicc\""),
        ("nft flush chain inet cni_firewall forward", "chain \"forward\""),
        ("nft insert rule inet cni_firewall forward accept", "chain \"forward\""),
        ("nft flush chain inet cni_firewall unmark", "chain \"unmark\""),
        ("nft flush chain inet cni_firewall mark-20", "chain \"mark-20\""),
        ("nft delete table inet cni_firewall", "address 10.1.0.2 is missing"),
        ("iptables-nft -D FORWARD -j FERRULE-FORWARD", "[-j FERRULE-FORWARD] not found in IPv4 iptables"),
        ("ip6tables-nft -F", "chain FERRULE-FORWARD of IPv6 iptables is missing or altered"),
        (&format!("bridge link set dev {port} isolated off"), "of the bridge is not isolated"),
    ] {
        assert_eq!(added.check(), Ok(()), "before {change}");
        world.node.sh(change).unwrap();
        let error = added.check().unwrap_err();
        assert!(error.contains(words), "{change}: {error}");
        world.ctx.add(&added.attachment, &added.config());
    }
    world.node.sh("iptables-nft -I FORWARD -j DROP").unwrap();
    let error = added.check().unwrap_err();
    assert!(
        error.contains("a rule before [-j FERRULE-FORWARD] in FORWARD of IPv4 iptables drops all packets"),
        "{error}"
    );
}

/// An administrator's first `iptables` rule makes the chain `FORWARD`, which drops nothing at first.
#[test]
fn a_chain_forward_that_is_newer_than_the_container_needs_an_opening_once_it_drops() {
    let world = World::new();
    let added = world.add("one", &pods(json!({"backend": "nftables"})));
    for (change, is_open) in [
        ("iptables-nft -P FORWARD ACCEPT; iptables-nft -A FORWARD -s 10.9.9.9 -j DROP", true),
        ("iptables-nft -P FORWARD DROP", false),
        ("iptables-nft -P FORWARD ACCEPT; iptables-nft -A FORWARD -j DROP", false),
    ] {
        world.node.sh(change).unwrap();
        assert_eq!(added.check().is_ok(), is_open, "{change}");
    }
    world.ctx.add(&added.attachment, &added.config());
    assert_eq!(added.check(), Ok(()));
}

/// The forward chain as the tools read it: `iptables` lists, saves and restores the table.
#[test]
fn iptables_understands_the_forward_chain() {
    let world = World::new();
    world.node.sh("iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -s 10.9.9.9 -j ACCEPT").unwrap();
    let added = world.add("one", &pods(json!({"backend": "nftables"})));
    let before = saved(&world, "nft");
    assert!(
        before.contains(
            "iptables -A FORWARD -j FERRULE-FORWARD\niptables -A FORWARD -s 10.9.9.9/32 -j ACCEPT\n"
        ),
        "{before}"
    );
    assert!(
        before.contains("iptables -A FERRULE-FORWARD -m mark --mark 0x100000/0x100000 -j ACCEPT\n"),
        "{before}"
    );
    // An address of one family opens only that family.
    world
        .node
        .sh("iptables-nft-save > /run/saved; iptables-nft -F; iptables-nft-restore < /run/saved")
        .unwrap();
    assert_eq!(saved(&world, "nft"), before);
    assert_eq!(added.check(), Ok(()));
}

#[test]
fn del_succeeds_with_every_configuration_and_without_programs() {
    for backend in ["nftables", "iptables"] {
        let world = World::new();
        let added = world.add("one", &pods(json!({"backend": backend})));
        let good = added.config();
        let empty = tempfile::tempdir().unwrap();
        let without_programs = world.with_programs(empty.path());
        for keys in [
            json!({}),
            json!({"prevResult": null}),
            json!({"prevResult": {"ips": "nonsense", "cniVersion": "1.1.0"}}),
            json!({"ingressPolicy": "foo"}),
            json!({"backend": 7}),
            json!({"backend": "firewalld"}),
            json!({"backend": "ebpf", "markBit": 99, "iptablesAdminChainName": "X".repeat(40)}),
            json!({"firewalldZone": ["no"]}),
        ] {
            let config = overlay(&good, &keys);
            without_programs.del(&added.attachment, &config);
            let left = ["pods4", "pods6", "others4", "others6"].map(|set| world.set(set));
            assert_eq!(left, [const { String::new() }; 4], "{config}");
            assert!(!saved(&world, "nft").contains("10.1.0.2"), "{config}");
            let mut gone = added.attachment.clone();
            gone.netns = String::new();
            world.ctx.del(&gone, &config);
            world.ctx.add(&added.attachment, &good);
        }
    }
}

#[test]
fn gc_keeps_valid_attachments_and_other_networks() {
    for backend in ["nftables", "iptables"] {
        let world = World::new();
        let keys = json!({"backend": backend});
        let dead = world.add("dead", &pods(keys.clone()));
        let alive = world.add("alive", &pods(keys.clone()));
        let other = world.add("other", &more(keys.clone()));
        // Only firewall: bridge's GC would remove the links.
        let gc = overlay(
            &alive.config(),
            &json!({"prevResult": null,
            "cni.dev/valid-attachments": [{"containerID": "alive", "ifname": "eth0"}]}),
        );
        world.succeed("GC", &Attachment::default(), &gc);
        assert!(dead.check().is_err(), "{backend}");
        assert_eq!((alive.check(), other.check()), (Ok(()), Ok(())), "{backend}");
        world.runtime().gc(&pods(keys), Some(&[] as &[ValidAttachment])).unwrap();
        assert_eq!(other.check(), Ok(()), "{backend}");
        assert!(!(world.table() + &saved(&world, "nft")).contains("10.1.0."), "{backend}");
    }
}

#[test]
fn all_versions_and_keys() {
    let world = World::new();
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let keys = json!({"backend": "nftables", "unknown": 1});
        let added = world.add(&format!("v{version}"), &network_of("pods", "cni0", 0, version, keys));
        assert_eq!(added.result["cniVersion"], version);
        assert_eq!(world.set("pods4").matches("10.1.0.").count(), 1);
        if version >= "0.4.0" {
            assert_eq!(added.check(), Ok(()));
        }
        added.del();
        assert_eq!(world.set("pods4"), "");
    }
    let added = world.add("one", &pods(json!({"backend": "nftables"})));
    let none = overlay(&added.config(), &json!({"prevResult": null}));
    for verb in ["ADD", "CHECK"] {
        assert_eq!(world.fail(verb, &added.attachment, &none).msg, "missing prevResult from earlier plugin");
    }
    let before = world.table();
    let unknown = overlay(&added.config(), &json!({"ingressPolicy": "foo"}));
    world
        .fail("ADD", &Attachment::new("x", added.attachment.netns.clone(), "eth0"), &unknown)
        .expect(7, "unknown ingress policy: \"foo\"");
    assert_eq!(world.table(), before);
}

/// Another bit replaces the one of the table, everywhere.
#[test]
fn the_mark_bit_can_be_changed() {
    let world = World::new();
    world.node.sh("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP").unwrap();
    let one = world.add("one", &pods(json!({"backend": "nftables"})));
    let two = world.add("two", &more(json!({"backend": "nftables", "markBit": 25})));
    assert!(world.table().contains("0x02000000") && saved(&world, "nft").contains("0x2000000/0x2000000"));
    two.serve(80);
    expect_pod(&one, &two, true, "another bit");
    assert_eq!(two.check(), Ok(()));
}

/// The operator's chain closes and opens, and survives.
#[test]
fn the_operators_chain_comes_before_the_rules() {
    let world = World::new();
    world.node.sh("iptables-nft -P FORWARD DROP").unwrap();
    let one = world.add("one", &pods(json!({"backend": "nftables"})));
    let two = world.add("two", &more(json!({"backend": "nftables"})));
    two.serve(80);
    let to = SocketAddr::new(two.address(false), 80);
    expect(&one.pod, to, true, "open");
    world.nft("add rule inet cni_firewall admin tcp dport 80 drop");
    expect(&one.pod, to, false, "dropped");
    world.nft("flush chain inet cni_firewall admin");
    expect(&world.outside[0], to, false, "closed");
    world.nft("add rule inet cni_firewall admin ip daddr 10.1.1.0/24 meta mark set meta mark | 0x100000");
    expect(&world.outside[0], to, true, "opened");
    world.nft("flush chain inet cni_firewall forward");
    world.ctx.add(&one.attachment, &one.config());
    assert!(world.table().contains("ip daddr 10.1.1.0/24"), "{}", world.table());
}

#[test]
fn sixteen_calls_at_once_on_a_new_node() {
    let world = World::new();
    world.node.sh("iptables-nft -P FORWARD DROP").unwrap();
    let config = |number: u8| -> Value {
        json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall", "backend": "nftables",
            "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": format!("10.1.0.{}/24", number + 50)}]}})
    };
    let netns = world.pod("pod").attachment("eth0").netns;
    let calls = |verb: &str| -> Vec<_> {
        let of = |number: u8| {
            world.exec(verb, &Attachment::new(format!("pod{number}"), netns.clone(), "eth0"), &config(number))
        };
        (0..16).map(of).collect()
    };
    for verb in ["ADD", "CHECK", "ADD"] {
        for output in at_once(&world.node, &calls(verb)) {
            assert!(output.success(), "{verb}: {}", output.stdout_text());
        }
    }
    assert_eq!(world.set("pods4").matches("10.1.0.").count(), 16);
    assert_eq!(world.table().matches("jump admin").count(), 1, "{}", world.table());
    let filter = saved(&world, "nft");
    assert_eq!(filter.matches("-j FERRULE-FORWARD").count(), 1, "{filter}");
    for output in at_once(&world.node, &calls("DEL")) {
        assert!(output.success(), "{}", output.stdout_text());
    }
    assert_eq!(world.set("pods4"), "");
}

/// Nomad names the plugin twice, the second time with a backend that does not exist.
#[test]
fn del_keeps_the_addresses_that_another_container_has_got_since() {
    let world = World::new();
    let netns = world.pod("pod").attachment("eth0").netns;
    let [first, second] = ["first", "second"].map(|name| Attachment::new(name, netns.clone(), "eth0"));
    for backend in ["nftables", "iptables"] {
        let config = |ips: &[&str]| {
            let ips: Vec<Value> = ips.iter().map(|ip| json!({"address": ip})).collect();
            json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall", "backend": backend,
                "prevResult": {"cniVersion": "1.1.0", "ips": ips}})
        };
        // Nomad's results have the address of `lo`.
        let of_first = config(&["127.0.0.1/8", "10.1.0.9/24", "10.1.0.8/24"]);
        let of_second = config(&["127.0.0.1/8", "10.1.0.8/24"]);
        world.ctx.add(&first, &of_first);
        world.ctx.add(&second, &of_second);
        world.ctx.del(&first, &of_first);
        world.ctx.check(&second, &of_second);
        world.ctx.del(&second, &of_second);
        assert_eq!(["pods4", "others4"].map(|set| world.set(set)), ["", ""], "{backend}");
    }
}

#[test]
fn a_chain_may_name_the_plugin_twice() {
    let world = World::new();
    world.node.sh("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP").unwrap();
    for second in ["ip6tables", "nftables"] {
        let mut network = pods(json!({"backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"}));
        let again = json!({"type": "firewall", "backend": second});
        network.plugins.push(again.as_object().unwrap().clone());
        let one = world.add(&format!("one{second}"), &network);
        one.serve(80);
        let two = world.add(&format!("two{second}"), &network);
        expect_pod(&two, &one, true, second);
        assert_eq!((one.check(), two.check()), (Ok(()), Ok(())), "{second}");
        one.del();
        two.del();
        assert!(!(world.table() + &saved(&world, "nft")).contains("10.1.0."), "{second}");
    }
}

#[test]
fn status_says_which_backend_is_missing() {
    let world = World::new();
    let empty = tempfile::tempdir().unwrap();
    let ctx = world.with_programs(empty.path());
    for (backend, words) in
        [("iptables", "iptables-restore is not on the PATH"), ("firewalld", "connect to unix:path=/run/dbus")]
    {
        let config = json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall", "backend": backend});
        ctx.fail("STATUS", &Attachment::default(), &config).expect(50, words);
    }
    for backend in ["nftables", ""] {
        let config = json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall", "backend": backend});
        ctx.succeed("STATUS", &Attachment::default(), &config);
    }
}

//! The iptables backend beside the reference. The tests need root, `nft`, both variants of `iptables` and the reference's
//! plugins.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::iptables::{VARIANTS, variant};
use cni_lab::testing::{Origin, overlay};
use cni_runner::{Attachment, ValidAttachment};
use common::{World, network_of, plugins, saved, take_turns, without_forward_chain};
use serde_json::json;

/// The filter tables after the same ADDs by the reference and by us.
#[test]
fn rules_are_those_of_the_reference_byte_for_byte() {
    for name in VARIANTS {
        let programs = variant(name);
        for (admins, policies) in
            [(["", "NOMAD-ADMIN"], ["open", "same-bridge"]), (["", ""], ["same-bridge", "same-bridge"])]
        {
            let state = |by: Origin| {
                let world = World::by(by);
                let ctx = world.with_programs(programs.path());
                for ((number, policy), admin) in (0..).zip(policies).zip(admins) {
                    let keys = json!({"backend": "iptables", "iptablesAdminChainName": admin, "ingressPolicy": policy});
                    let network =
                        network_of(&format!("net{number}"), &format!("cni{number}"), number, "1.0.0", keys);
                    for pod in 0..2 {
                        let pod = world.pod(&format!("pod{number}{pod}"));
                        let mut list = network.clone();
                        // One family: the reference adds the families in random order.
                        list.plugins[0]["ipam"]["ranges"].as_array_mut().unwrap().truncate(1);
                        ctx.runtime().add(&list, &pod.attachment("eth0")).unwrap();
                        ctx.runtime().check(&list, &pod.attachment("eth0")).unwrap();
                    }
                }
                // Since 1.7 the reference names both policies in the comments of shared rules, as we do.
                saved(&world, name).replace("same-bridge|isolated", "same-bridge")
            };
            let (ours, theirs) = (state(Origin::Ours), state(Origin::Reference));
            assert!(theirs.contains("-s 10.1.0.2/32 -j ACCEPT"), "{theirs}");
            // The tool creates the other family's table when it lists it.
            assert_eq!(
                without_forward_chain(&ours),
                without_forward_chain(&theirs),
                "{name} {admins:?} {policies:?}"
            );
            assert_eq!(ours.matches("FERRULE").count(), 3, "{ours}");
        }
    }
}

/// CHECK and DEL of the reference's containers, CHECK and DEL by the reference of ours.
#[test]
fn either_plugin_checks_and_removes_what_the_other_has_added() {
    for name in VARIANTS {
        let world = World::by(Origin::Reference);
        let programs = variant(name);
        let theirs = world.with_programs(programs.path());
        let ours = theirs.with_plugins(plugins(Origin::Ours));
        let network = |backend: &str| network_of("pods", "cni0", 0, "1.0.0", json!({"backend": backend}));
        let before = theirs.pod("first").attachment("eth0");
        theirs.runtime().add(&network("iptables"), &before).unwrap();
        let before = saved(&world, name);
        for backend in ["iptables", "nftables", ""] {
            let attachment = world.pod(&format!("theirs{backend}")).attachment("eth0");
            theirs.runtime().add(&network("iptables"), &attachment).unwrap();
            ours.runtime().check(&network(backend), &attachment).unwrap();
            ours.runtime().del(&network(backend), &attachment).unwrap();
            assert_eq!(saved(&world, name), before, "{name} {backend}");
        }
        let attachment = world.pod("ours").attachment("eth0");
        ours.runtime().add(&network("iptables"), &attachment).unwrap();
        theirs.runtime().check(&network("iptables"), &attachment).unwrap();
        theirs.runtime().del(&network("iptables"), &attachment).unwrap();
        assert_eq!(without_forward_chain(&saved(&world, name)), before, "{name}");
        // The reference does not know our table; GC cleans it.
        assert!(world.set("others4").contains("ours"));
        let newest = network_of("pods", "cni0", 0, "1.1.0", json!({"backend": "iptables"}));
        ours.runtime().gc(&newest, Some(&[ValidAttachment::new("first", "eth0")])).unwrap();
        assert_eq!(world.set("others4"), "");
        assert_eq!(without_forward_chain(&saved(&world, name)), before, "{name}");
    }
}

#[test]
fn check_names_the_missing_rule() {
    for name in VARIANTS {
        let world = World::new();
        let programs = variant(name);
        let ctx = world.with_programs(programs.path());
        let keys = json!({"backend": "iptables", "ingressPolicy": "same-bridge"});
        let network = network_of("pods", "cni0", 0, "1.0.0", keys);
        let added = world.add_by(&ctx, "one", &network, &json!([]));
        let whole = world.node.tool(&format!("iptables-{name}-save"), &["-t", "filter"]).unwrap();
        for (change, words) in [
            (
                "-D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD",
                "expected FORWARD rule [-m comment --comment CNI firewall plugin rules -j CNI-FORWARD] not found",
            ),
            (
                "-D CNI-FORWARD 1",
                "expected CNI-FORWARD rule [-m comment --comment CNI firewall plugin admin overrides -j CNI-ADMIN]",
            ),
            ("-D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT", "expected rule [-s 10.1.0.2/32 -j ACCEPT] not found"),
            (
                "-D CNI-FORWARD 2",
                "[-d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT] not found",
            ),
            ("-F CNI-ISOLATION-STAGE-2", "CNI-ISOLATION-STAGE-2"),
            ("-I FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD", "have no effect"),
        ] {
            assert_eq!(added.check_by(&ctx), Ok(()), "before {change}");
            world.node.sh(&format!("iptables-{name} {change}")).unwrap();
            let before = saved(&world, name);
            let error = added.check_by(&ctx).unwrap_err();
            assert!(
                error.contains(words) || (words.starts_with("CNI-ISO") && error.contains("-o cni0")),
                "{change}: {error}"
            );
            assert_eq!(saved(&world, name), before, "CHECK changes nothing");
            // The next ADD repairs it.
            ctx.add(&added.attachment, &added.config());
            assert_eq!(added.check_by(&ctx), Ok(()), "after {change}");
            world.node.write_file("/run/saved", &whole).unwrap();
            world.node.sh(&format!("iptables-{name}-restore < /run/saved")).unwrap();
        }
    }
}

/// A DEL that comes late, after IPAM has given the address to another container.
#[test]
fn a_late_del_does_not_close_the_firewall_for_the_next_container() {
    for backend in ["iptables", "nftables"] {
        let world = World::new();
        let old = world.add("old", &network_of("pods", "cni0", 0, "1.0.0", json!({"backend": backend})));
        let next = Attachment::new("next", old.attachment.netns.clone(), "eth0");
        let output = world.call("ADD", &next, &old.config());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.success() && said.contains("10.1.0.2 belonged to container old"), "{said}");
        let error = world.fail("CHECK", &old.attachment, &old.config());
        assert!(error.msg.contains("belongs to container next") || backend == "iptables", "{error}");
        world.ctx.del(&old.attachment, &old.config());
        world.ctx.check(&next, &old.config());
        world.ctx.del(&next, &old.config());
        assert!(!saved(&world, "nft").contains("10.1.0.2") && world.set("pods4").is_empty());
    }
}

#[test]
fn sixteen_calls_at_once() {
    for name in VARIANTS {
        let world = World::new();
        let programs = variant(name);
        let ctx = world.with_programs(programs.path());
        let keys = json!({"backend": "iptables", "ingressPolicy": "same-bridge"});
        let base = world.add_by(
            &world.ctx,
            "base",
            &network_of("pods", "cni0", 0, "1.0.0", json!({"backend": "nftables"})),
            &json!([]),
        );
        let calls = |verb: &str| -> Vec<_> {
            let of = |number: u8| {
                let mut config = overlay(&base.config(), &keys);
                config["prevResult"]["ips"] = json!([{"address": format!("10.1.0.{}/24", number + 50)}]);
                ctx.exec(
                    verb,
                    &Attachment::new(format!("pod{number}"), base.attachment.netns.clone(), "eth0"),
                    &config,
                )
            };
            (0..16).map(of).collect()
        };
        for verb in ["ADD", "CHECK"] {
            for output in cni_lab::testing::at_once(&world.node, &calls(verb)) {
                assert!(output.success(), "{name} {verb}: {}", output.stdout_text());
            }
        }
        let state = saved(&world, name);
        assert_eq!(state.matches("-A CNI-FORWARD -s 10.1.0.").count(), 16, "{state}");
        for jump in [
            "-j CNI-FORWARD\n",
            "-j CNI-ADMIN\n",
            "-j CNI-ISOLATION-STAGE-1\n",
            "-j FERRULE-FORWARD\n",
            "-j RETURN\n",
        ] {
            let wanted = if jump.contains("RETURN") { 2 } else { 1 };
            assert_eq!(state.matches(jump).count(), wanted, "{jump}: {state}");
        }
        for output in cni_lab::testing::at_once(&world.node, &calls("DEL")) {
            assert!(output.success(), "{name}: {}", output.stdout_text());
        }
        assert!(!saved(&world, name).contains("10.1.0."), "{}", saved(&world, name));
        assert_eq!(world.set("others4"), "");
    }
}

#[test]
fn random_calls_of_both_plugins_leave_nothing() {
    for name in VARIANTS {
        let world = World::by(Origin::Reference);
        let programs = variant(name);
        let ctx = world.with_programs(programs.path());
        take_turns(&world, &ctx, "iptables", || saved(&world, name).matches("-A CNI-FORWARD -s ").count());
    }
}

//! `macspoofchk`: the bridge drops frames with a forged source address, from ADD until DEL or GC. Some tests
//! need the reference's plugins and `nft`, which those start.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Origin, StubIpam, TestContext, Trace, host_local, mac, overlay, ports, with_prev};
use cni_lab::{Place as _, Pod, Snapshot, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{config, ours, plugins, with_stub};
use serde_json::{Value, json};

fn conf(keys: &Value) -> Value {
    let base = json!({"isGateway": true, "macspoofchk": true, "ipam": host_local(&["10.1.0.0/24"])});
    config("1.0.0", &overlay(&base, keys))
}

fn ruleset(ctx: &TestContext) -> String {
    ctx.node.sh("nft list ruleset").unwrap()
}

/// A snapshot of a node with this many pods, without what no DEL removes: the bridge and host-local's index.
fn snapshot(ctx: &TestContext, pods: usize) -> Snapshot {
    assert!(eventually(TIMEOUT, || ports(&ctx.node, "br0").len() == pods));
    ctx.snapshot().ignoring(&common::SHARED).ignoring(&["/.ferrule/"])
}

fn can_ping(pod: &Pod, to: &str) -> bool {
    pod.sh(&format!("ping -c 1 -W 1 {to}")).is_ok()
}

#[test]
fn forged_frames_are_dropped_and_those_of_other_pods_are_not() {
    let ctx = ours();
    let (one, free) = (ctx.pod("one"), ctx.pod("free"));
    let result = ctx.add(&one.attachment("eth0"), &conf(&json!({})));
    ctx.add(&free.attachment("eth0"), &conf(&json!({"macspoofchk": false})));
    assert!(can_ping(&one, "10.1.0.1") && can_ping(&one, "10.1.0.3"));
    let real = mac(&one, "eth0");
    for pod in [&one, &free] {
        pod.sh("ip link set eth0 address 02:00:00:00:00:66").unwrap();
    }
    assert!(!can_ping(&one, "10.1.0.1") && !can_ping(&one, "10.1.0.3"));
    assert!(can_ping(&free, "10.1.0.1"));
    one.sh(&format!("ip link set eth0 address {real}")).unwrap();
    assert!(can_ping(&one, "10.1.0.1"));
    ctx.check(&one.attachment("eth0"), &with_prev(&conf(&json!({})), &result));
}

#[test]
fn layer_2_and_an_address_of_the_configuration() {
    let ctx = ours();
    let pod = ctx.pod("one");
    let keys =
        json!({"ipam": {}, "runtimeConfig": {"mac": "02:00:00:00:00:05"}, "disableContainerInterface": true});
    ctx.add(&pod.attachment("eth0"), &conf(&keys));
    let chain = "nft list chain bridge nat cni-br-iface-one-eth0-mac";
    assert!(ctx.node.sh(chain).unwrap().contains("ether saddr 02:00:00:00:00:05 return comment"));
    // Longer than a chain's name can be.
    let before = ruleset(&ctx);
    let long = Attachment { container_id: "x".repeat(300), ..ctx.pod("two").attachment("eth0") };
    let result = ctx.add(&long, &conf(&keys));
    ctx.check(&long, &with_prev(&conf(&keys), &result));
    ctx.del(&long, &conf(&keys));
    assert_eq!(ruleset(&ctx), before);
}

#[test]
fn rules_are_those_of_the_reference_byte_for_byte() {
    let state = |by: Origin| {
        let ctx = TestContext::new(plugins(by));
        let mut ports = Vec::new();
        for (name, ifname) in [("dummy-0", "eth0"), (&"x".repeat(64), "net1")] {
            let conf = conf(&json!({"runtimeConfig": {"mac": "02:00:00:00:00:05"}}));
            let result = ctx.add(&ctx.pod(name).attachment(ifname), &conf);
            ports.push(result["interfaces"][1]["name"].as_str().unwrap().to_owned());
        }
        ports.iter().fold(ruleset(&ctx), |text, port| text.replace(port, "PORT"))
    };
    let ours = state(Origin::Ours);
    assert_eq!(ours, state(Origin::Reference));
    assert!(ours.contains("comment \"macspoofchk-dummy-0-eth0\""), "{ours}");
}

/// ADD by one implementation, CHECK and DEL by the other.
#[test]
fn either_implementation_continues_the_others_attachment() {
    for (first, second) in [(Origin::Ours, Origin::Reference), (Origin::Reference, Origin::Ours)] {
        let one = TestContext::new(plugins(first));
        let two = one.with_plugins(plugins(second));
        one.add(&one.pod("stays").attachment("eth0"), &conf(&json!({})));
        let before = snapshot(&one, 1);
        let attachment = one.pod("pod1").attachment("eth0");
        let result = with_prev(&conf(&json!({})), &one.add(&attachment, &conf(&json!({}))));
        two.check(&attachment, &result);
        two.del(&attachment, &result);
        assert_eq!(before.diff(&snapshot(&one, 1)), "", "{first:?}, then {second:?}");
    }
}

#[test]
fn check_finds_each_missing_rule() {
    let ctx = ours();
    let attachment = ctx.pod("pod1").attachment("eth0");
    let result = with_prev(&conf(&json!({})), &ctx.add(&attachment, &conf(&json!({}))));
    let whole = ruleset(&ctx);
    for (rule, missing) in [
        ("PREROUTING iifname", "PREROUTING has no jump"),
        ("cni-br-iface-pod1-eth0 jump", "cni-br-iface-pod1-eth0 has no jump"),
        ("cni-br-iface-pod1-eth0-mac ether", "does not drop"),
        ("cni-br-iface-pod1-eth0-mac drop", "does not drop"),
    ] {
        ctx.check(&attachment, &result);
        let (chain, start) = rule.split_once(' ').unwrap();
        let handle = format!("nft -a list chain bridge nat {chain} | sed -n 's/^\t\t{start}.*handle //p'");
        ctx.node.sh(&format!("nft delete rule bridge nat {chain} handle $({handle})")).unwrap();
        ctx.fail("CHECK", &attachment, &result).expect(999, missing);
        ctx.node.sh(&format!("nft -f - <<'END'\nflush ruleset\n{whole}\nEND")).unwrap();
    }
    let foreign =
        "nft insert rule bridge nat cni-br-iface-pod1-eth0-mac ether saddr 02:00:00:00:00:66 return";
    ctx.node.sh(foreign).unwrap();
    ctx.fail("CHECK", &attachment, &result).expect(999, "does not drop");
    ctx.node.sh("nft delete table bridge nat").unwrap();
    ctx.fail("CHECK", &attachment, &result).expect(999, "PREROUTING has no jump");
}

#[test]
fn every_kind_of_del_and_gc_remove_the_rules() {
    for by in [Origin::Ours, Origin::Reference] {
        for kind in ["plain", "namespace gone", "no namespace path", "macspoofchk off", "GC"] {
            let ctx = ours();
            let (pod, other) = (ctx.pod("pod1"), ctx.pod("other"));
            ctx.add(&other.attachment("eth0"), &conf(&json!({})));
            let before = snapshot(&ctx, 1);
            let result = ctx.with_plugins(plugins(by)).add(&pod.attachment("eth0"), &conf(&json!({})));
            let attachment = pod.attachment("eth0");
            if matches!(kind, "namespace gone" | "GC") {
                pod.delete().unwrap();
                assert!(eventually(TIMEOUT, || ports(&ctx.node, "br0").len() == 1));
            }
            match kind {
                "no namespace path" => {
                    let conf = with_prev(&conf(&json!({})), &result);
                    ctx.del(&Attachment::new("pod1", "", "eth0"), &conf);
                }
                "macspoofchk off" => ctx.del(&attachment, &conf(&json!({"macspoofchk": false}))),
                "GC" => gc(&ctx, "other"),
                _ => ctx.del(&attachment, &conf(&json!({}))),
            }
            assert_eq!(before.diff(&snapshot(&ctx, 1)), "", "{by:?}, {kind}");
        }
    }
}

fn gc(ctx: &TestContext, valid: &str) {
    let valid = json!([{"containerID": valid, "ifname": "eth0"}]);
    let valid = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid});
    ctx.succeed("GC", &Attachment::default(), &overlay(&conf(&json!({})), &valid));
}

/// The rules do not name their network, so only those of ports that no longer exist are surely dead.
#[test]
fn gc_keeps_rules_of_ports_that_exist_and_of_valid_attachments() {
    let ctx = ours();
    let (alive, valid) = (ctx.pod("alive"), ctx.pod("valid"));
    ctx.add(&alive.attachment("eth0"), &conf(&json!({"name": "other"})));
    ctx.add(&valid.attachment("eth0"), &conf(&json!({})));
    valid.sh("ip link del eth0").unwrap();
    ctx.node
        .sh("nft add chain bridge nat foreign; nft add rule bridge nat PREROUTING iifname gone jump foreign")
        .unwrap();
    let before = ruleset(&ctx);
    gc(&ctx, "valid");
    assert_eq!(ruleset(&ctx), before);
}

/// A killed ADD may have left rules with another address.
#[test]
fn add_replaces_earlier_rules() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let conf = conf(&json!({"ipam": {}}));
    let stale = "nft -f - <<'END'
        table bridge nat {
          chain cni-br-iface-pod1-eth0-mac { ether saddr 02:00:00:00:00:66 return; }
          chain cni-br-iface-pod1-eth0 { jump cni-br-iface-pod1-eth0-mac; }
          chain PREROUTING { type filter hook prerouting priority -300; iifname gone jump cni-br-iface-pod1-eth0; }
        }\nEND";
    ctx.node.sh(stale).unwrap();
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    assert_eq!(ruleset(&ctx).matches("jump cni-br-iface-pod1-eth0 ").count(), 1);
}

#[test]
fn a_failed_add_leaves_no_rules_and_none_needs_a_program() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
    let ctx = with_stub(&stub);
    let keys = json!({"ipam": {"type": "stub"}, "ipMasq": true, "ipMasqBackend": "iptables"});
    ctx.add(&ctx.pod("first").attachment("eth0"), &conf(&json!({"ipam": {"type": "stub"}})));
    let before = snapshot(&ctx, 1);
    let programs = tempfile::tempdir().unwrap();
    for (name, path) in [("sh", "/bin/sh"), ("env", "/usr/bin/env"), ("cat", "/bin/cat")] {
        std::os::unix::fs::symlink(path, programs.path().join(name)).unwrap();
    }
    // Masquerading comes after the rules against spoofing, and fails without its program.
    let without = ctx.with_programs(programs.path());
    let failure = without.fail("ADD", &ctx.pod("pod1").attachment("eth0"), &conf(&keys));
    failure.expect(999, "iptables-restore is not on the PATH");
    assert_eq!(before.diff(&snapshot(&ctx, 1)), "");

    let attachment = ctx.pod("pod2").attachment("eth0");
    let layer_2 = conf(&json!({"ipam": {}}));
    for verb in ["ADD", "DEL"] {
        assert_eq!(Trace::of(&ctx.node, &ctx.exec(verb, &attachment, &layer_2), "execve").programs(), 0);
    }
}

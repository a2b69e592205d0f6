//! `ipMasqBackend: iptables`: the reference's chains in both variants of `iptables`. The tests need both
//! variants, and the reference's plugins, whose backend is iptables.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;

use cni_lab::testing::iptables::{VARIANTS, saved, slow_nft, variant};
use cni_lab::testing::{
    Origin, StubIpam, TestContext, Trace, assert_unchanged, at_once, host_local, overlay, ports, with_prev,
};
use cni_lab::{Place as _, Pod, Snapshot, TIMEOUT, eventually};
use cni_runner::{Attachment, Exec, Output};
use common::{config, ours, plugins, with_stub};
use serde_json::{Value, json};

fn conf(keys: &Value) -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    let base = json!({"isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "ipam": ipam});
    config("1.0.0", &overlay(&base, keys))
}

/// A snapshot of a node with one pod, without what no DEL removes: the bridge, iptables' base chains, and our
/// host-local's index, which the reference does not know.
fn snapshot(ctx: &TestContext) -> Snapshot {
    assert!(eventually(TIMEOUT, || ports(&ctx.node, "br0").len() == 1));
    ctx.snapshot().ignoring(&common::SHARED).ignoring(&Snapshot::NAT_BASE_CHAINS).ignoring(&["/.ferrule/"])
}

#[test]
fn rules_are_those_of_the_reference_byte_for_byte() {
    for name in VARIANTS {
        let programs = variant(name);
        let state = |by: Origin| {
            let ctx = TestContext::new(plugins(by)).with_programs(programs.path());
            for pod in ["one", "two"] {
                ctx.add(&ctx.pod(pod).attachment("eth0"), &conf(&json!({})));
            }
            saved(&ctx.node, name)
        };
        let (ours, theirs) = (state(Origin::Ours), state(Origin::Reference));
        assert_eq!(ours, theirs, "{name}");
        assert_eq!(ours.matches(" -j MASQUERADE").count(), 4, "{ours}");
    }
}

/// ADD by one implementation, CHECK and DEL by the other.
#[test]
fn either_implementation_continues_the_others_attachment() {
    for name in VARIANTS {
        for (first, second) in [(Origin::Ours, Origin::Reference), (Origin::Reference, Origin::Ours)] {
            let programs = variant(name);
            let one = TestContext::new(plugins(first)).with_programs(programs.path());
            let two = one.with_plugins(plugins(second));
            let pod = one.pod("pod1");
            let attachment = pod.attachment("eth0");
            one.add(&one.pod("stays").attachment("eth0"), &conf(&json!({})));
            let before = snapshot(&one);
            let result = one.add(&attachment, &conf(&json!({})));
            let with_result = with_prev(&conf(&json!({})), &result);
            two.check(&attachment, &with_result);
            two.del(&attachment, &with_result);
            assert_eq!(before.diff(&snapshot(&one)), "", "{name}: {first:?}, then {second:?}");
        }
    }
}

#[test]
fn check_finds_each_missing_rule() {
    for name in VARIANTS {
        let programs = variant(name);
        let ctx = ours().with_programs(programs.path());
        let attachment = ctx.pod("pod1").attachment("eth0");
        let result = ctx.add(&attachment, &conf(&json!({})));
        let with_result = with_prev(&conf(&json!({})), &result);
        for (program, address) in [("iptables", "10.1.0.2/24"), ("ip6tables", "fd00:1::2/64")] {
            let program = format!("{program}-{name}");
            let rules = ctx.node.sh(&format!("{program} -t nat -S")).unwrap();
            let rules: Vec<&str> = rules.lines().filter(|line| line.starts_with("-A")).collect();
            assert_eq!(rules.len(), 3, "{rules:?}");
            for rule in rules {
                ctx.check(&attachment, &with_result);
                ctx.node.sh(&format!("{program} -t nat -D {}", &rule[3..])).unwrap();
                let failure = ctx.fail("CHECK", &attachment, &with_result);
                failure.expect(999, &format!("address {address} is not masqueraded"));
                // A rule at the end of the chain would come after MASQUERADE.
                let insert = if rule.ends_with("ACCEPT") { "-I" } else { "-A" };
                ctx.node.sh(&format!("{program} -t nat {insert} {}", &rule[3..])).unwrap();
            }
        }
    }
}

#[test]
fn every_kind_of_del_and_gc_remove_the_rules() {
    for name in VARIANTS {
        for kind in ["plain", "namespace gone", "no namespace path", "nftables", "ipMasq off", "GC"] {
            let programs = variant(name);
            let ctx = ours().with_programs(programs.path());
            let (pod, other) = (ctx.pod("pod1"), ctx.pod("other"));
            ctx.add(&other.attachment("eth0"), &conf(&json!({})));
            let before = snapshot(&ctx);
            ctx.add(&pod.attachment("eth0"), &conf(&json!({})));
            let attachment = pod.attachment("eth0");
            if matches!(kind, "namespace gone" | "GC") {
                pod.delete().unwrap();
            }
            match kind {
                "no namespace path" => ctx.del(&Attachment::new("pod1", "", "eth0"), &conf(&json!({}))),
                "nftables" => ctx.del(&attachment, &conf(&json!({"ipMasqBackend": "nftables"}))),
                "ipMasq off" => ctx.del(&attachment, &conf(&json!({"ipMasq": false}))),
                "GC" => {
                    let valid = json!([{"containerID": "other", "ifname": "eth0"}]);
                    let valid = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid});
                    ctx.succeed("GC", &Attachment::default(), &overlay(&conf(&json!({})), &valid));
                }
                _ => ctx.del(&attachment, &conf(&json!({}))),
            }
            assert_eq!(before.diff(&snapshot(&ctx)), "", "{name}, {kind}");
        }
    }
}

/// The reference names the chain after the container alone, so two interfaces on one network share it.
#[test]
fn a_second_interface_keeps_the_rules_of_the_first() {
    for name in VARIANTS {
        let (stub, programs) = (StubIpam::assigning("1.0.0", &["10.1.0.2/24"]), variant(name));
        let ctx = with_stub(&stub).with_programs(programs.path());
        // Only the programs of the variant are on the plugin's PATH; the stub needs a shell.
        std::os::unix::fs::symlink("/bin/sh", programs.path().join("sh")).unwrap();
        std::os::unix::fs::symlink("/bin/cat", programs.path().join("cat")).unwrap();
        std::os::unix::fs::symlink("/usr/bin/env", programs.path().join("env")).unwrap();
        let conf = conf(&json!({"forceAddress": true, "ipam": {"type": "stub"}}));
        let pod = ctx.pod("pod1");
        let first = with_prev(&conf, &ctx.add(&pod.attachment("eth0"), &conf));
        stub.assign("1.0.0", &["10.2.0.2/24"]);
        let second = with_prev(&conf, &ctx.add(&pod.attachment("eth1"), &conf));
        ctx.check(&pod.attachment("eth0"), &first);
        ctx.check(&pod.attachment("eth1"), &second);
        let saved = saved(&ctx.node, name);
        assert_eq!(saved.matches("-j MASQUERADE").count(), 1, "{saved}");
        assert!(saved.find("-d 10.2.0.0/24").unwrap() < saved.find("-j MASQUERADE").unwrap(), "{saved}");
    }
}

#[test]
fn add_starts_one_program_for_each_family() {
    for name in VARIANTS {
        let programs = variant(name);
        let ctx = ours().with_programs(programs.path());
        let exec = ctx.exec("ADD", &ctx.pod("pod1").attachment("eth0"), &conf(&json!({})));
        // host-local is a program of its own here, because the tests run a bridge that stands alone.
        assert_eq!(Trace::of(&ctx.node, &exec, "execve").programs(), 2 + 1, "{name}");
    }
}

#[test]
fn a_failed_family_undoes_the_other_one() {
    for name in VARIANTS {
        let programs = variant(name);
        let ctx = ours().with_programs(programs.path());
        let pod = ctx.pod("pod1");
        ctx.add(&ctx.pod("first").attachment("eth0"), &conf(&json!({})));
        let before = snapshot(&ctx);
        fs::remove_file(programs.path().join("ip6tables-restore")).unwrap();
        let failure = ctx.fail("ADD", &pod.attachment("eth0"), &conf(&json!({})));
        failure.expect(999, "ip6tables-restore is not on the PATH");
        assert_eq!(before.diff(&snapshot(&ctx)), "", "{name}");
    }
}

/// Other processes change the ruleset after `iptables` has read it.
#[test]
fn concurrent_adds_make_each_rule_once() {
    let programs = slow_nft();
    let ctx = ours().with_programs(programs.path());
    let on = |subnet: &str| conf(&json!({"forceAddress": true, "ipam": host_local(&[subnet])}));
    let pods = ["one", "two", "three"].map(|name| ctx.pod(name));
    let add = |pod: &Pod, name: &str, subnet: &str| ctx.exec("ADD", &pod.attachment(name), &on(subnet));
    let at_once = |calls: &[Exec]| assert!(at_once(&ctx.node, calls).iter().all(Output::success));
    at_once(&[0, 1, 2].map(|number| add(&pods[number], "eth0", "10.1.0.0/24")));
    // The interfaces of one container share a chain.
    at_once(&["eth1", "eth2", "eth3"].map(|name| add(&pods[0], name, "10.2.0.0/24")));
    let saved = saved(&ctx.node, "nft");
    let count = |text: &str| saved.matches(text).count();
    assert_eq!((count("-j MASQUERADE"), count("-A POSTROUTING "), count("-j ACCEPT")), (3, 6, 4), "{saved}");
}

#[test]
fn missing_programs_and_unknown_names_are_clear_errors() {
    let empty = tempfile::tempdir().unwrap();
    let ctx = ours().with_programs(empty.path());
    let pod = ctx.pod("pod1");
    let before = ctx.snapshot();
    let unknown = conf(&json!({"ipMasqBackend": "pf"}));
    ctx.fail("ADD", &pod.attachment("eth0"), &unknown).expect(7, "unknown ipmasq backend \"pf\"");
    assert_unchanged(&ctx.node, &before, "an unknown backend");
    let status = conf(&json!({"cniVersion": "1.1.0"}));
    let failure = ctx.fail("STATUS", &Attachment::default(), &status);
    failure.expect(50, "iptables-restore is not on the PATH");
    let failure = ctx.fail("ADD", &pod.attachment("eth0"), &conf(&json!({})));
    failure.expect(999, "iptables-restore is not on the PATH");
}

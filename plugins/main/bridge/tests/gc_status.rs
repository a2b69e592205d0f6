//! GC removes what belongs to attachments that are not valid, and nothing else. STATUS changes nothing.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::Duration;

use cni_lab::testing::{
    StubIpam, TestContext, VERSIONS, assert_unchanged, host_local, measure, overlay, with_prev,
};
use cni_lab::{Place as _, Pod};
use cni_runner::Attachment;
use common::{config, ours, with_stub};
use serde_json::{Value, json};

/// The attachments that the node masquerades, as `network/container/ifname`. Each rule is one line.
fn masqueraded(ctx: &TestContext) -> Vec<String> {
    let rules = ctx.node.sh("nft list ruleset").unwrap();
    let comments = rules.lines().filter_map(|line| line.split_once("comment \"").map(|(_, comment)| comment));
    let pods = comments.filter_map(|comment| {
        let (net, id) = (comment.split_once("net: ")?.1, comment.split_once("id: ")?.1);
        let ifname = comment.split_once("if: ")?.1;
        Some(format!("{}/{}/{}", net.split(',').next()?, id.trim_end_matches('"'), ifname.split(',').next()?))
    });
    let mut pods: Vec<String> = pods.collect();
    pods.sort();
    pods.dedup();
    pods
}

fn net(name: &str, subnet: &str) -> Value {
    let ipam = host_local(&[subnet, &format!("fd00:{name}::/64").replace("net", "1").replace("other", "2")]);
    config(
        "1.1.0",
        &json!({"name": name, "isGateway": true, "forceAddress": true, "ipMasq": true, "ipam": ipam}),
    )
}

struct Full {
    ctx: TestContext,
    net: Value,
    _pods: Vec<Pod>,
}

/// Network `net` with `one` (eth0) and `two` (eth0, eth1), and network `other` with `one` (eth9).
fn full() -> Full {
    let ctx = ours();
    let (net, other) = (net("net", "10.1.0.0/24"), net("other", "10.2.0.0/24"));
    let (one, two) = (ctx.pod("one"), ctx.pod("two"));
    for (attachment, conf) in [
        (one.attachment("eth0"), &net),
        (two.attachment("eth0"), &net),
        (two.attachment("eth1"), &net),
        (one.attachment("eth9"), &other),
    ] {
        ctx.add(&attachment, conf);
    }
    assert_eq!(masqueraded(&ctx), ["net/one/eth0", "net/two/eth0", "net/two/eth1", "other/one/eth9"]);
    Full { ctx, net, _pods: vec![one, two] }
}

#[test]
fn gc_keeps_valid_attachments() {
    let valid = json!([{"containerID": "two", "ifname": "eth0"}]);
    for keys in [
        json!({"cni.dev/valid-attachments": valid}),
        json!({"cni.dev/attachments": valid}),
        json!({"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}),
    ] {
        let full = full();
        let links = full.ctx.node.sh("ip -o link | wc -l").unwrap();
        full.ctx.succeed("GC", &Attachment::default(), &overlay(&full.net, &keys));
        assert_eq!(masqueraded(&full.ctx), ["net/two/eth0", "other/one/eth9"], "{keys}");
        assert_eq!(full.ctx.reservations("net"), ["10.1.0.3", "fd00:1::3"], "{keys}");
        assert_eq!(full.ctx.node.list_dir("/var/lib/cni/networks/other").unwrap().len(), 5);
        assert_eq!(full.ctx.node.sh("ip -o link | wc -l").unwrap(), links, "GC does not delete links");
        full.ctx.succeed("GC", &Attachment::default(), &overlay(&full.net, &keys));
    }
}

/// CRI-O sends `null` if it starts without pods; cnitool sends no key at all.
#[test]
fn gc_of_everything() {
    for keys in [
        json!({"cni.dev/valid-attachments": []}),
        json!({"cni.dev/valid-attachments": null, "cni.dev/attachments": null}),
        json!({}),
    ] {
        let full = full();
        full.ctx.succeed("GC", &Attachment::default(), &overlay(&full.net, &keys));
        assert_eq!(masqueraded(&full.ctx), ["other/one/eth9"], "{keys}");
        assert!(full.ctx.reservations("net").is_empty(), "{keys}");
    }
}

/// GC also removes rules if `ipMasq` has been switched off since ADD.
#[test]
fn gc_after_the_configuration_has_changed() {
    let full = full();
    let keys = json!({"ipMasq": false, "vlan": 100, "mtu": -1, "cni.dev/valid-attachments": []});
    full.ctx.succeed("GC", &Attachment::default(), &overlay(&full.net, &keys));
    assert_eq!(masqueraded(&full.ctx), ["other/one/eth9"]);
}

#[test]
fn gc_calls_ipam_and_creates_nothing() {
    let stub = StubIpam::new();
    let ctx = with_stub(&stub);
    let before = ctx.snapshot();
    let keys = json!({"ipMasq": true, "ipam": {"type": "stub"}, "cni.dev/valid-attachments": null});
    let conf = config("1.1.0", &keys);
    ctx.succeed("GC", &Attachment::default(), &conf);
    assert_eq!(stub.calls(), ["GC"]);
    assert_eq!(stub.stdin("GC"), conf.to_string());
    assert_unchanged(&ctx.node, &before, "GC created something");
    // Without IPAM there is no plugin to call.
    ctx.succeed("GC", &Attachment::default(), &overlay(&conf, &json!({"ipam": null})));
    assert_unchanged(&ctx.node, &before, "GC created something");
    assert!(stub.calls().is_empty());
}

#[test]
fn ipam_error_is_reported_after_the_rules_are_removed() {
    let stub = StubIpam::assigning("1.1.0", &["10.1.0.2/24"]);
    stub.fail("GC", 130, "not today");
    let ctx = with_stub(&stub);
    let conf = config("1.1.0", &json!({"ipMasq": true, "ipam": {"type": "stub"}}));
    let pod = ctx.pod("pod1");
    ctx.add(&pod.attachment("eth0"), &conf);
    assert_eq!(masqueraded(&ctx).len(), 1);
    ctx.fail("GC", &Attachment::default(), &conf).expect(130, "not today");
    assert!(masqueraded(&ctx).is_empty());
    let missing = overlay(&conf, &json!({"ipam": {"type": "missing"}}));
    ctx.fail("GC", &Attachment::default(), &missing).expect(999, "failed to find plugin \"missing\"");
}

#[test]
fn gc_with_an_invalid_list() {
    let full = full();
    let before = full.ctx.snapshot();
    for valid in [json!("x"), json!(5), json!([5]), json!({"containerID": "two"})] {
        let conf = overlay(&full.net, &json!({"cni.dev/valid-attachments": valid}));
        let failure = full.ctx.fail("GC", &Attachment::default(), &conf);
        assert!(matches!(failure.code, 6 | 7), "{failure:?}");
    }
    assert_unchanged(&full.ctx.node, &before, "GC with an invalid list");
}

#[test]
fn gc_and_status_need_1_1_0() {
    let ctx = ours();
    for version in &VERSIONS[..6] {
        for verb in ["GC", "STATUS"] {
            let failure = ctx.fail(verb, &Attachment::default(), &config(version, &json!({})));
            failure.expect(1, &format!("config version does not allow {verb}"));
        }
    }
}

#[test]
fn status_succeeds_and_changes_nothing() {
    let stub = StubIpam::new();
    let ctx = with_stub(&stub);
    let before = ctx.snapshot();
    for keys in [
        json!({}),
        json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}),
        json!({"isGateway": true, "ipMasq": true, "ipam": host_local(&["10.1.0.0/24"])}),
        json!({"ipam": {"type": ""}}),
    ] {
        ctx.succeed("STATUS", &Attachment::default(), &config("1.1.0", &keys));
        assert_unchanged(&ctx.node, &before, &keys.to_string());
    }
    assert_eq!(stub.calls(), ["STATUS"]);
    // And with an attachment in place.
    let pod = ctx.pod("pod1");
    let conf = net("net", "10.1.0.0/24");
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    let before = ctx.snapshot();
    ctx.succeed("STATUS", &Attachment::default(), &conf);
    assert_unchanged(&ctx.node, &before, "STATUS");
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
}

#[test]
fn status_fails_if_add_would_fail() {
    let stub = StubIpam::new();
    let ctx = with_stub(&stub);
    let call = |keys: &Value| {
        let conf = overlay(&config("1.1.0", &json!({"ipam": {"type": "stub"}})), keys);
        ctx.fail("STATUS", &Attachment::default(), &conf)
    };
    ctx.node.sh("ip link add notbr type veth peer name notbr-peer && ip link add plain type bridge").unwrap();
    let before = ctx.snapshot();
    call(&json!({"bridge": "notbr"})).expect(50, "\"notbr\" already exists but is not a bridge");
    call(&json!({"mtu": -1})).expect(7, "invalid mtu -1");
    call(&json!({"vlan": -1})).expect(7, "invalid VLAN ID -1");
    // The bridge does not filter VLANs, and perhaps the kernel cannot.
    call(&json!({"bridge": "plain", "vlan": 5})).expect(50, "VLAN");
    call(&json!({"ipMasqBackend": "pf"})).expect(7, "unknown ipmasq backend");
    call(&json!({"ipam": {"type": "missing"}})).expect(50, "failed to find plugin \"missing\"");
    assert!(stub.calls().is_empty());
    stub.fail("STATUS", 50, "full up");
    call(&json!({})).expect(50, "full up");
    stub.answer("STATUS", "echo oh >&2; exit 3");
    call(&json!({})).expect(999, "oh");
    assert_unchanged(&ctx.node, &before, "STATUS");
}

/// CRI-O polls STATUS every 0.5 s while a node starts.
#[test]
fn status_takes_less_than_50_ms() {
    let ctx = ours();
    let conf = config("1.1.0", &json!({"isGateway": true, "ipMasq": true}));
    let mut exec = ctx.exec("STATUS", &Attachment::default(), &conf);
    exec.timeout = None;
    let most = Duration::from_millis(50);
    let wall = measure("STATUS of bridge", 5, |wall| *wall < most, || ctx.node.call(&exec).unwrap().wall);
    assert!(wall < most, "{wall:?}");
}

//! ADD, CHECK and DEL of a device, which is a veth end here.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::{
    Origin, PluginDir, StubIpam, TestContext, addresses, is_up, link, link_plugin, network_config, try_link,
    with_prev,
};
use cni_lab::{Place as _, Snapshot};
use cni_runner::Attachment;
use serde_json::{Value, json};

const RECORDS: &str = "/run/cni/host-device";

/// A node with the device `hd0`, which is up and has addresses and routes.
fn node() -> TestContext {
    let ctx = TestContext::new(PluginDir::new(env!("CARGO_BIN_EXE_host-device"), Origin::Ours));
    ctx.node
        .sh("ip link add hd0 type veth peer name hd1; ip link set hd1 up; ip link set hd0 up
             ip address add 10.9.0.1/24 dev hd0; ip -6 address add fd00:9::1/64 dev hd0 nodad
             ip route add 10.99.0.0/16 via 10.9.0.7; ip -6 route add fd00:99::/64 via fd00:9::7")
        .unwrap();
    ctx
}

/// The node's state without the folder of the records, which stays.
fn snapshot(ctx: &TestContext) -> Snapshot {
    ctx.snapshot().ignoring(&["/run/cni/host-device/ 0700"])
}

fn config(keys: &Value) -> Value {
    let conf = network_config("host-device", "1.0.0", &json!({"device": "hd0"}));
    cni_lab::testing::overlay(&conf, keys)
}

#[test]
fn the_device_comes_back_as_it_was() {
    let mut ctx = node();
    let stub = StubIpam::assigning("1.0.0", &["10.1.2.9/24"]);
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    for ipam in [json!({}), json!({"ipam": {"type": "stub"}})] {
        let (pod, conf) = (ctx.pod("pod"), config(&ipam));
        let before = snapshot(&ctx);
        let result = ctx.add(&pod.attachment("net1"), &conf);
        assert!(try_link(&ctx.node, "hd0").is_none());
        assert_eq!(link(&pod, "net1")["ifalias"], "hd0");
        assert!(is_up(&pod, "net1"));
        ctx.check(&pod.attachment("net1"), &with_prev(&conf, &result));
        ctx.fail("ADD", &pod.attachment("net1"), &conf);
        for _ in 0..2 {
            ctx.del(&pod.attachment("net1"), &conf);
            assert_eq!(before.diff(&snapshot(&ctx)), "");
        }
        assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), Vec::<String>::new());
        pod.delete().unwrap();
    }
}

#[test]
fn dhcp_finds_the_device() {
    let ctx = node();
    // The folder of the records stays.
    ctx.node.sh("mkdir -p -m 700 /run/cni/host-device").unwrap();
    link_plugin::dhcp_finds_the_link(&ctx, &config(&json!({})));
}

/// A veth end goes with its namespace, so a peer of it is left on the node and DEL finds nothing.
#[test]
fn del_without_the_namespace_removes_the_record() {
    let ctx = node();
    let (pod, conf) = (ctx.pod("pod"), config(&json!({})));
    let attachment = pod.attachment("net1");
    ctx.add(&attachment, &conf);
    pod.delete().unwrap();
    for netns in [attachment.netns.clone(), String::new()] {
        ctx.del(
            &Attachment { netns, ..attachment.clone() },
            &network_config("host-device", "1.0.0", &json!({"device": 7})),
        );
        assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), Vec::<String>::new());
    }
}

/// The kernel refuses the second address, after the move.
#[test]
fn a_failed_add_gives_the_device_back() {
    let mut ctx = node();
    let stub = StubIpam::assigning("1.0.0", &["10.1.2.9/24", "10.1.2.9/24"]);
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    let (pod, before) = (ctx.pod("pod"), snapshot(&ctx));
    ctx.fail("ADD", &pod.attachment("net1"), &config(&json!({"ipam": {"type": "stub"}})));
    assert_eq!(before.diff(&snapshot(&ctx)), "");
    assert_eq!(addresses(&ctx.node, "hd0"), ["10.9.0.1/24", "fd00:9::1/64"]);
}

/// The reference restores neither addresses nor state, so only the name counts.
#[test]
fn ours_and_the_reference_take_over_from_each_other() {
    for (first, second) in [(Origin::Ours, Origin::Reference), (Origin::Reference, Origin::Ours)] {
        let ctx = node();
        let [first, second] = [first, second]
            .map(|origin| ctx.with_plugins(PluginDir::new(env!("CARGO_BIN_EXE_host-device"), origin)));
        let (pod, conf) = (ctx.pod("pod"), config(&json!({})));
        let attachment = pod.attachment("net1");
        let result = first.add(&attachment, &conf);
        second.check(&attachment, &with_prev(&conf, &result));
        second.del(&attachment, &conf);
        assert!(try_link(&ctx.node, "hd0").is_some() && try_link(&pod, "net1").is_none());
    }
}

#[test]
fn a_name_conflict_on_the_host_fails_del_until_it_is_gone() {
    let ctx = node();
    let (pod, conf) = (ctx.pod("pod"), config(&json!({})));
    ctx.add(&pod.attachment("net1"), &conf);
    ctx.node.sh("ip link add hd0 type veth peer name other").unwrap();
    assert_eq!(
        ctx.fail("DEL", &pod.attachment("net1"), &conf).msg,
        "failed to move \"hd0\" to hostNS: file exists"
    );
    assert!(is_up(&pod, "net1"));
    ctx.node.sh("ip link delete hd0").unwrap();
    ctx.del(&pod.attachment("net1"), &conf);
    assert_eq!(addresses(&ctx.node, "hd0"), ["10.9.0.1/24", "fd00:9::1/64"]);
}

#[test]
fn del_after_a_kill_gives_the_device_back() {
    let ctx = node();
    let (pod, conf) = (ctx.pod("pod"), config(&json!({})));
    let before = snapshot(&ctx);
    let attachment = pod.attachment("net1");
    for verb in ["ADD", "DEL"] {
        if verb == "DEL" {
            ctx.add(&attachment, &conf);
        }
        let points = ctx.kill_points(verb, &attachment, &conf);
        ctx.del(&attachment, &conf);
        for point in points {
            if verb == "DEL" {
                ctx.add(&attachment, &conf);
            }
            ctx.kill(&point, verb, &attachment, &conf);
            ctx.del(&attachment, &conf);
            assert_eq!(before.diff(&snapshot(&ctx)), "", "{verb} killed {point}");
        }
    }
}

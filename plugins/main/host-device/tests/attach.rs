//! ADD, CHECK and DEL of a device, which is a veth end here.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::{
    Origin, PluginDir, StubIpam, TestContext, addresses, is_up, link, network_config, try_link, with_prev,
};
use cni_lab::{Place as _, Snapshot};
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

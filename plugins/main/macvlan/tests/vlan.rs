//! The key `vlan`: a VLAN device that several macvlans share.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::link_plugin::{config, ours, uplink};
use cni_lab::testing::{TestContext, overlay, try_link, with_prev};
use cni_lab::{Place as _, Pod};
use cni_runner::Attachment;
use serde_json::{Value, json};

fn node() -> (TestContext, Pod, Value) {
    cni_lab::kernel_module("8021q");
    let ctx = ours(env!("CARGO_BIN_EXE_macvlan"));
    let lan = uplink(&ctx);
    (ctx, lan, config("macvlan", "1.1.0", &json!({"master": "uplink0", "vlan": 5, "dad": "off"})))
}

fn has_device(ctx: &TestContext) -> bool {
    try_link(&ctx.node, "uplink0.5").is_some()
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn the_last_user_removes_the_device() {
    let (ctx, lan, conf) = node();
    lan.sh("ip link add link lan0 name lan0.5 type vlan id 5 && ip address flush dev lan0 && \
        ip address add 10.1.2.1/24 dev lan0.5 && ip link set lan0.5 up")
        .unwrap();
    let pods = ["first", "second"].map(|name| ctx.pod(name));
    for pod in &pods {
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        pod.sh("ping -n -c 1 -w 30 10.1.2.1").unwrap();
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    }
    let [first, second] = &pods;
    let gone = overlay(&conf, &json!({"master": "gone0", "vlan": "x"}));
    ctx.del(&first.attachment("eth0"), &gone);
    ctx.del(&first.attachment("eth0"), &gone);
    assert!(has_device(&ctx));
    second.sh("ping -n -c 1 -w 30 10.1.2.1").unwrap();
    // A lost pod: GC removes its part.
    second.delete().unwrap();
    let valid = |ids: &[&str]| {
        let list: Vec<Value> = ids.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
        overlay(&conf, &json!({"cni.dev/valid-attachments": list}))
    };
    ctx.succeed("GC", &Attachment::default(), &valid(&["second"]));
    assert!(has_device(&ctx));
    ctx.succeed("GC", &Attachment::default(), &valid(&[]));
    assert!(!has_device(&ctx));
    // A device that another program has made stays; one of another VLAN is refused.
    ctx.node
        .sh("ip link add link uplink0 name uplink0.5 type vlan id 5 && ip link set uplink0.5 up")
        .unwrap();
    ctx.add(&first.attachment("eth0"), &conf);
    ctx.del(&first.attachment("eth0"), &conf);
    assert!(has_device(&ctx));
    ctx.node.sh("ip link del uplink0.5 && ip link add link uplink0 name uplink0.5 type vlan id 6").unwrap();
    let error = ctx.fail("ADD", &first.attachment("eth0"), &conf);
    error.expect(999, "\"uplink0.5\" exists and is not VLAN 5 of \"uplink0\"");
}

/// Without IPAM: `shared.rs` kills ADD there, on any kernel.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn del_cleans_up_after_killed_adds() {
    let (ctx, _lan, conf) = node();
    let conf = overlay(&conf, &json!({"ipam": {}}));
    let pod = ctx.pod("killed");
    let attachment = pod.attachment("eth0");
    let points = ctx.kill_points("ADD", &attachment, &conf);
    assert!(has_device(&ctx));
    ctx.del(&attachment, &conf);
    for point in points {
        ctx.kill(&point, "ADD", &attachment, &conf);
        ctx.del(&attachment, &conf);
        assert!(!has_device(&ctx) && try_link(&pod, "eth0").is_none(), "killed {point}");
    }
}

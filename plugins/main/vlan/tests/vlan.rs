//! ID, MTU, traffic, and what all plugins of one link share.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::Place as _;
use cni_lab::testing::link_plugin::{self, CHANGES, config};
use cni_lab::testing::{link, overlay, with_prev};
use cni_runner::Attachment;
use serde_json::json;

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn life_of_a_vlan() {
    cni_lab::kernel_module("8021q");
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_vlan"));
    let lan = link_plugin::uplink(&ctx);
    // The node has an interface of the same name, at which kernels before 6.13 look.
    ctx.node.sh("ip link set uplink0 mtu 1300 && ip link add eth0 type veth peer name eth1").unwrap();
    lan.sh("ip link add link lan0 name lan0.5 type vlan id 5 && ip address flush dev lan0 && \
        ip address add 10.1.2.1/24 dev lan0.5 && ip link set lan0.5 up")
        .unwrap();
    let conf = |keys| {
        let base = json!({"master": "uplink0", "vlanId": 5, "dad": "off", "mac": "02:00:00:00:00:05"});
        config("vlan", "1.1.0", &overlay(&base, &keys))
    };
    let (pod, other) = (ctx.pod("pod1"), ctx.pod("pod2"));
    let result = ctx.add(&pod.attachment("eth0"), &conf(json!({})));
    let eth0 = link(&pod, "eth0");
    assert_eq!((&eth0["mtu"], &eth0["address"]), (&json!(1300), &json!("02:00:00:00:00:05")));
    assert_eq!(eth0["linkinfo"]["info_data"]["id"], 5);
    pod.sh("ping -n -c 1 -w 30 10.1.2.1").unwrap();
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf(json!({})), &result));
    let changed = with_prev(&conf(json!({"vlanId": 6})), &result);
    let error = ctx.fail("CHECK", &pod.attachment("eth0"), &changed);
    error.expect(999, "vlan \"eth0\" has VLAN ID 5, the configuration says VLAN ID 6");
    for (keys, code, text) in [
        (json!({}), 999, "VLAN ID 5 of master \"uplink0\" is in use, perhaps by another container"),
        (json!({"vlanId": 6, "mtu": 1600}), 7, "invalid MTU 1600, must be [0, master MTU(1300)]"),
        (json!({"vlanId": 6, "mtu": -100}), 7, "invalid MTU -100, must be [0, master MTU(1300)]"),
    ] {
        ctx.fail("ADD", &other.attachment("eth0"), &conf(keys)).expect(code, text);
    }
    ctx.node.sh("ip link del eth0").unwrap();
    ctx.del(&pod.attachment("eth0"), &conf(json!({})));
    link_plugin::check_notices(&ctx, &conf(json!({"mtu": 1290})), &CHANGES[5..]);
    link_plugin::del_leaves_no_address(&ctx, &conf(json!({})), &conf(json!({"vlanId": 6})), true);
    let compatible = overlay(&conf(json!({})), &json!({"cniVersion": "1.0.0"}));
    link_plugin::takes_turns_with_the_reference(&ctx, "vlan", &compatible);
    ctx.succeed("STATUS", &Attachment::default(), &conf(json!({})));
}

/// The MTU is checked before the kernel is asked for the link. The reference's tests name no `vlanId` here.
#[test]
fn the_mtu_is_checked_first() {
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_vlan"));
    link_plugin::uplink(&ctx);
    let pod = ctx.pod("pod1");
    pod.sh("ip link add uplink0 type veth peer name other0").unwrap();
    for (mtu, in_container) in [(1600, false), (-100, false), (1600, true), (-100, true)] {
        let keys = json!({"master": "uplink0", "mtu": mtu, "linkInContainer": in_container});
        let error = ctx.fail("ADD", &pod.attachment("eth0"), &config("vlan", "1.0.0", &keys));
        error.expect(7, &format!("invalid MTU {mtu}, must be [0, master MTU(1500)]"));
    }
    assert_eq!(ctx.reservations("net"), Vec::<String>::new());
}

/// Where the kernel lacks the kind, the error says so.
#[test]
fn without_the_kind() {
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_vlan"));
    link_plugin::uplink(&ctx);
    if ctx.node.sh("ip link add link uplink0 name probe0 type vlan id 9").is_ok() {
        return;
    }
    let conf = config("vlan", "1.1.0", &json!({"master": "uplink0", "vlanId": 5}));
    let pod = ctx.pod("pod1");
    let text = "the kernel has no links of type \"vlan\": operation not supported";
    ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(50, text);
    ctx.fail("STATUS", &Attachment::default(), &conf).expect(50, text);
    assert_eq!(ctx.reservations("net"), Vec::<String>::new());
}

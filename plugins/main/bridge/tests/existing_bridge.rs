//! A bridge that the administrator has made keeps its MAC address, which the kernel takes from the ports if it is not set:
//! neighbours would lose their way to the gateway.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{StubIpam, host_local, mac, overlay, with_prev};
use common::{config, ours, with_stub};
use serde_json::json;

/// Without a port, and with one whose address is higher than that of any port of ours.
const BRIDGES: [&str; 2] = [
    "ip link add br0 type bridge",
    "ip link add br0 type bridge && ip link add up0 address fe:ff:ff:ff:ff:ff type veth peer name up1 && \
     ip link set up0 master br0",
];

#[test]
fn an_existing_bridge_keeps_its_mac_address() {
    let ctx = ours();
    let ipam = json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])});
    for (keys, bridge) in [(json!({}), 0), (ipam.clone(), 0), (ipam, 1)] {
        ctx.node.sh(&format!("{} && ip link set br0 up", BRIDGES[bridge])).unwrap();
        let before = mac(&ctx.node, "br0");
        let pod = ctx.pod("pod");
        let (attachment, conf) = (pod.attachment("eth0"), config("1.0.0", &keys));
        let result = ctx.add(&attachment, &conf);
        assert_eq!(result["interfaces"][0]["mac"], before.as_str(), "{keys}");
        let keeps = |when: &str| assert_eq!(mac(&ctx.node, "br0"), before, "{keys} {when}");
        keeps("ADD");
        // Another plugin's port with a lower address than any port of ours.
        ctx.node.sh("ip link add low0 address 02:00:00:00:00:01 type veth peer name low1").unwrap();
        ctx.node.sh("ip link set low0 master br0").unwrap();
        keeps("another port");
        ctx.check(&attachment, &with_prev(&conf, &result));
        ctx.del(&attachment, &conf);
        keeps("DEL");
        ctx.node
            .sh("ip link del low0 && ip link del br0 && { ! ip link show up0 || ip link del up0; }")
            .unwrap();
        pod.delete().unwrap();
    }
}

#[test]
fn a_failed_add_does_not_change_the_mac_address() {
    let unreachable = json!([{"dst": "10.9.0.0/16", "gw": "192.0.2.77"}]);
    let stub = StubIpam::new();
    stub.result(&json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.9/24"}], "routes": unreachable}));
    let ctx = with_stub(&stub);
    ctx.node.sh("ip link add br0 type bridge && ip link set br0 up").unwrap();
    let before = mac(&ctx.node, "br0");
    let conf = overlay(&config("1.0.0", &json!({"isGateway": true})), &json!({"ipam": {"type": "stub"}}));
    let error = ctx.fail("ADD", &ctx.pod("pod").attachment("eth0"), &conf);
    assert!(error.contains("failed to add route"), "{error}");
    assert_eq!(mac(&ctx.node, "br0"), before);
}

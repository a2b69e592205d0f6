//! The keys that make the bridge a gateway: its addresses, the routes of containers, and forwarding.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{StubIpam, addresses, overlay, routes, sysctl};
use cni_lab::{Place as _, TIMEOUT, eventually};
use common::{config, with_stub};
use serde_json::{Value, json};

const FORWARDING: [&str; 2] = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];

#[test]
fn is_gateway_adds_the_first_address_to_the_bridge() {
    for (keys, expected, forwarding) in [
        (json!({}), vec![], ["0", "0"]),
        (json!({"isGateway": true}), vec!["10.1.0.1/24"], ["1", "0"]),
        (json!({"isDefaultGateway": true}), vec!["10.1.0.1/24"], ["1", "0"]),
        (json!({"isGateway": false, "isDefaultGateway": null}), vec![], ["0", "0"]),
    ] {
        let stub = StubIpam::assigning("1.0.0", &["10.1.0.77/24"]);
        let ctx = with_stub(&stub);
        let pod = ctx.pod("pod1");
        let conf = overlay(&config("1.0.0", &keys), &json!({"ipam": {"type": "stub"}}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        assert_eq!(addresses(&ctx.node, "br0"), expected, "{keys}");
        assert_eq!(FORWARDING.map(|name| sysctl(&ctx.node, name)), forwarding, "{keys}");
        let gateway = (!expected.is_empty()).then(|| json!("10.1.0.1"));
        assert_eq!(result["ips"][0].get("gateway"), gateway.as_ref(), "{keys}");
        // The gateway is always reported; a default route needs `isDefaultGateway`.
        let has_default = !routes(&pod, "default").is_empty();
        assert_eq!(has_default, keys["isDefaultGateway"] == true, "{keys}");
        assert_eq!(result.get("routes").is_some(), has_default, "{keys}");
    }
}

#[test]
fn ipams_gateway_takes_precedence() {
    let stub = StubIpam::new();
    stub.result(
        &json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.77/24", "gateway": "10.1.0.254"}]}),
    );
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipam": {"type": "stub"}}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    assert_eq!(addresses(&ctx.node, "br0"), ["10.1.0.254/24"]);
    assert_eq!(routes(&pod, "default")[0]["gateway"], "10.1.0.254");
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.254"}]));
}

#[test]
fn forwarding_is_enabled_for_assigned_families() {
    for (assigned, expected) in [
        (&["10.1.0.2/24"][..], ["1", "0"]),
        (&["fd00:1::2/64"], ["0", "1"]),
        (&["10.1.0.2/24", "fd00:1::2/64"], ["1", "1"]),
    ] {
        let stub = StubIpam::assigning("1.0.0", assigned);
        let ctx = with_stub(&stub);
        assert_eq!(FORWARDING.map(|name| sysctl(&ctx.node, name)), ["0", "0"]);
        let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
        ctx.add(&ctx.pod("pod1").attachment("eth0"), &conf);
        assert_eq!(FORWARDING.map(|name| sysctl(&ctx.node, name)), expected, "{assigned:?}");
    }
}

#[test]
fn conflicting_address_is_an_error_or_replaced() {
    for (existing, assigned, wanted) in [
        ("10.1.0.9/24", "10.1.0.77/24", "10.1.0.1/24"),
        ("10.7.0.1/24", "10.1.0.77/24", "10.1.0.1/24"),
        ("fd00:1::9/64", "fd00:1::77/64", "fd00:1::1/64"),
    ] {
        let stub = StubIpam::assigning("1.0.0", &[assigned]);
        let ctx = with_stub(&stub);
        ctx.node.sh(&format!("ip link add br0 type bridge && ip addr add {existing} dev br0")).unwrap();
        let pod = ctx.pod("pod1");
        let keys = json!({"isGateway": true, "ipam": {"type": "stub"}});
        let conf = config("1.0.0", &keys);
        let failure = ctx.fail("ADD", &pod.attachment("eth0"), &conf);
        failure.expect(999, &format!("\"br0\" already has an IP address different from {wanted}"));
        assert_eq!(addresses(&ctx.node, "br0"), [existing]);
        ctx.add(&pod.attachment("eth0"), &overlay(&conf, &json!({"forceAddress": true})));
        assert_eq!(addresses(&ctx.node, "br0"), [wanted]);
    }
}

/// IPv6 addresses of other networks and of other programs on a shared bridge, and addresses beside the gateway.
#[test]
fn addresses_without_conflict_stay() {
    for force in [false, true] {
        let stub = StubIpam::assigning("1.0.0", &["10.1.0.77/24", "fd00:1::77/64"]);
        let ctx = with_stub(&stub);
        ctx.node.sh("ip link add br0 type bridge && ip addr add fd00:2::9/64 dev br0").unwrap();
        let keys = json!({"isGateway": true, "forceAddress": force, "ipam": {"type": "stub"}});
        ctx.add(&ctx.pod("pod1").attachment("eth0"), &config("1.0.0", &keys));
        let expected = ["10.1.0.1/24", "fd00:1::1/64", "fd00:2::9/64"];
        assert_eq!(addresses(&ctx.node, "br0"), expected, "forceAddress {force}");
        ctx.node.sh("ip addr add 10.2.0.9/24 dev br0").unwrap();
        stub.assign("1.0.0", &["10.1.0.78/24", "fd00:1::78/64"]);
        ctx.add(&ctx.pod("pod2").attachment("eth0"), &config("1.0.0", &keys));
        let expected = ["10.1.0.1/24", "10.2.0.9/24", "fd00:1::1/64", "fd00:2::9/64"];
        assert_eq!(addresses(&ctx.node, "br0"), expected, "forceAddress {force}");
    }
}

/// The node's subnet has changed. The old gateway goes with the last pod that may use it.
#[test]
fn the_gateway_of_a_living_pod_stays() {
    gateway_of_a_living_pod_stays(&json!({}), "br0");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn the_gateway_of_a_living_pod_in_a_vlan_stays() {
    gateway_of_a_living_pod_stays(&json!({"vlan": 7}), "br0.7");
}

fn gateway_of_a_living_pod_stays(keys: &Value, link: &str) {
    let both = ["10.7.0.1/24", "10.8.0.1/24"];
    // A virtual machine may have taken the pod's address, so that its namespace has none.
    for (change, expected) in [("true", &both[..]), ("ip addr flush dev eth0", &both), ("", &both[1..])] {
        let stub = StubIpam::assigning("1.0.0", &["10.7.0.9/24"]);
        let ctx = with_stub(&stub);
        let keys = overlay(keys, &json!({"isDefaultGateway": true, "ipam": {"type": "stub"}}));
        let conf = config("1.0.0", &keys);
        let old = ctx.pod("old");
        ctx.add(&old.attachment("eth0"), &conf);
        stub.assign("1.0.0", &["10.8.0.9/24"]);
        let error = ctx.fail("ADD", &ctx.pod("refused").attachment("eth0"), &conf);
        error.expect(999, &format!("\"{link}\" already has an IP address different from 10.8.0.1/24"));
        let conf = overlay(&conf, &json!({"forceAddress": true}));
        match change {
            "" => {
                let ports = || ctx.node.sh("ls /sys/class/net/br0/brif").unwrap().lines().count();
                let before = ports();
                old.delete().unwrap();
                // The kernel removes its link some time later.
                assert!(eventually(TIMEOUT, || ports() < before));
            }
            change => drop(old.sh(change).unwrap()),
        }
        ctx.add(&ctx.pod("new").attachment("eth0"), &conf);
        assert_eq!(addresses(&ctx.node, link), expected, "{link} {change}");
        if change == "true" {
            old.sh("ping -c 1 -W 2 10.7.0.1").unwrap();
        }
        if !change.is_empty() {
            ctx.del(&old.attachment("eth0"), &conf);
        }
        stub.assign("1.0.0", &["10.8.0.10/24"]);
        ctx.add(&ctx.pod("newer").attachment("eth0"), &conf);
        assert_eq!(addresses(&ctx.node, link), both[1..], "{link} {change}");
    }
}

/// The kernel removes an address together with the others of its subnet that came later.
#[test]
fn the_new_gateway_of_the_same_subnet_stays_when_the_old_one_goes() {
    let stub = StubIpam::assigning("1.0.0", &["10.7.0.9/24"]);
    let ctx = with_stub(&stub);
    let keys = |gateway: &str| {
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.7.0.10/25", "gateway": gateway}]});
        stub.result(&result);
        json!({"isGateway": true, "forceAddress": true, "ipam": {"type": "stub"}})
    };
    let old = ctx.pod("old");
    ctx.add(&old.attachment("eth0"), &config("1.0.0", &keys("10.7.0.1")));
    let conf = config("1.0.0", &keys("10.7.0.2"));
    ctx.add(&ctx.pod("new").attachment("eth0"), &conf);
    assert_eq!(addresses(&ctx.node, "br0"), ["10.7.0.1/25", "10.7.0.2/25"]);
    ctx.del(&old.attachment("eth0"), &conf);
    ctx.node.sh("for port in /sys/class/net/br0/brif/*; do ip link del ${port##*/}; done").unwrap();
    ctx.add(&ctx.pod("newer").attachment("eth0"), &conf);
    assert_eq!(addresses(&ctx.node, "br0"), ["10.7.0.2/25"]);
}

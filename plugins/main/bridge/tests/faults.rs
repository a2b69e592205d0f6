//! Defects of the reference that users have reported and that this plugin must not have, and state that the
//! reference leaves.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{
    Origin, StubIpam, addresses, host_local, mac, overlay, ports, routes, try_link, with_prev,
};
use cni_runner::Attachment;
use common::{assert_only_shared_changed, config, ours, plugins, with_stub};
use serde_json::json;

/// plugins#620, nerdctl#4283: a bridge whose MAC address follows its ports has an all-zero one after the last
/// port is removed. The reference then sets the address that it finds, all zeros, and fails.
#[test]
fn bridge_without_mac_address_gets_one() {
    let ctx = ours();
    let go = ctx.with_plugins(plugins(Origin::Reference));
    let (one, two) = (ctx.pod("one"), ctx.pod("two"));
    let plain = config("1.0.0", &json!({}));
    go.add(&one.attachment("eth0"), &plain);
    // The reference's DEL fails on a network without IPAM (see below), after it has removed the link.
    go.call("DEL", &one.attachment("eth0"), &plain);
    one.sh("ip link del eth0 2>/dev/null; true").unwrap();
    assert_eq!(mac(&ctx.node, "br0"), "00:00:00:00:00:00", "the reference leaves an all-zero MAC address");

    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
    let result = ctx.add(&two.attachment("eth0"), &conf);
    let address = mac(&ctx.node, "br0");
    assert_ne!(address, "00:00:00:00:00:00");
    assert_eq!(result["interfaces"][0]["mac"], address);
    two.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
    ctx.check(&two.attachment("eth0"), &with_prev(&conf, &result));
    // The bridge keeps this address.
    ctx.del(&two.attachment("eth0"), &conf);
    assert_eq!(mac(&ctx.node, "br0"), address);
    ctx.add(&one.attachment("eth0"), &conf);
    assert_eq!(mac(&ctx.node, "br0"), address);
}

/// The reference adds the same default route twice.
#[test]
fn duplicate_default_route() {
    for (route, expected) in [
        (json!({"dst": "0.0.0.0/0"}), "10.1.0.1"),
        (json!({"dst": "0.0.0.0/0", "gw": "10.1.0.1"}), "10.1.0.1"),
        (json!({"dst": "0.0.0.0/0", "gw": "10.1.0.99"}), "10.1.0.99"),
    ] {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let ipam = overlay(&host_local(&["10.1.0.0/24"]), &json!({"routes": [route, route]}));
        let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipam": ipam}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        let defaults = routes(&pod, "default");
        assert_eq!(defaults.len(), 1, "{defaults:?}");
        assert_eq!(defaults[0]["gateway"], expected);
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    }
    // The kernel would merge duplicate IPv6 default routes into one multipath route.
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let ipam = overlay(&host_local(&["fd00:1::/64"]), &json!({"routes": [{"dst": "::/0"}]}));
    let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipam": ipam}));
    ctx.add(&pod.attachment("eth0"), &conf);
    let defaults = routes(&pod, "-6 default");
    assert_eq!(defaults.len(), 1, "{defaults:?}");
    assert_eq!(defaults[0]["gateway"], "fd00:1::1");
}

/// The reference reports the second IPv4 gateway as a conflict with the first.
#[test]
fn two_ipv4_subnets_with_gateways() {
    for force in [false, true] {
        let ctx = ours();
        let ipam = host_local(&["10.1.0.0/24", "10.2.0.0/24"]);
        let keys = json!({"isDefaultGateway": true, "forceAddress": force, "ipam": ipam});
        let conf = config("1.0.0", &keys);
        for name in ["one", "two"] {
            let pod = ctx.pod(name);
            let result = ctx.add(&pod.attachment("eth0"), &conf);
            assert_eq!(addresses(&ctx.node, "br0"), ["10.1.0.1/24", "10.2.0.1/24"]);
            assert_eq!(addresses(&pod, "eth0").len(), 2);
            pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -c 1 -W 2 10.2.0.1").unwrap();
            assert_eq!(routes(&pod, "default").len(), 1);
            ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        }
    }
}

/// Without IPAM the reference tries to call an IPAM plugin with an empty name.
#[test]
fn check_and_status_without_ipam() {
    for ipam in [json!(null), json!({}), json!({"type": ""})] {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let conf = config("1.1.0", &json!({"ipam": ipam}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        for verb in ["GC", "STATUS"] {
            ctx.succeed(verb, &Attachment::default(), &conf);
        }
        ctx.del(&pod.attachment("eth0"), &with_prev(&conf, &result));
    }
}

/// plugins#29: the reference leaves the veth pair after a failed ADD, and the next ADD fails with "already
/// exists".
#[test]
fn a_failed_add_can_be_tried_again() {
    let stub = StubIpam::new();
    stub.fail("ADD", 11, "later");
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
    for _ in 0..3 {
        ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(11, "later");
    }
    stub.assign("1.0.0", &["10.1.0.2/24"]);
    ctx.add(&pod.attachment("eth0"), &conf);
}

/// The reference leaves objects after a failed ADD. They make the next ADD fail until our DEL removes them.
#[test]
fn del_removes_what_a_failed_add_of_the_reference_left() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let before = ctx.snapshot();
    let ipam = overlay(
        &host_local(&["10.1.0.0/24"]),
        &json!({"routes": [{"dst": "10.9.0.0/16", "gw": "10.77.0.1"}]}),
    );
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": ipam}));
    let go = ctx.with_plugins(plugins(Origin::Reference));
    assert!(!go.call("ADD", &pod.attachment("eth0"), &conf).success());
    assert!(try_link(&pod, "eth0").is_some(), "the reference leaves the interface");
    ctx.del(&pod.attachment("eth0"), &conf);
    assert!(try_link(&pod, "eth0").is_none() && ports(&ctx.node, "br0").is_empty());
    assert_only_shared_changed(&ctx, &before, "DEL after a failed ADD of the reference");
}

/// The kernel says "exchange full".
#[test]
fn a_full_bridge_names_its_limit() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    // Both ends of a pair are ports, and all of them are down: no frame goes round in circles.
    let pairs = r#"ip link add br0 type bridge && for i in $(seq 511); do
        echo "link add l$i master br0 type veth peer name r$i"; echo "link set r$i master br0"
    done | ip -batch - && ip link add l512 master br0 type veth peer name r512"#;
    ctx.node.sh(pairs).unwrap();
    let before = ctx.snapshot();
    let conf = config("1.0.0", &json!({"ipam": host_local(&["10.1.0.0/24"])}));
    ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(999, "the bridge has 1023 ports");
    assert_only_shared_changed(&ctx, &before, "ADD on a full bridge");
    ctx.node.sh("ip link del l512").unwrap();
    ctx.add(&pod.attachment("eth0"), &conf);
}

/// The reference does its work in its own namespace and prints an error afterwards, as a second JSON
/// document.
#[test]
fn own_namespace_is_refused_before_anything_is_created() {
    let ctx = ours();
    let before = ctx.snapshot();
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
    let own = Attachment::new("pod1", "/proc/self/ns/net", "eth0");
    for verb in ["ADD", "CHECK"] {
        ctx.fail(verb, &own, &conf).expect(8, "should not be the same");
    }
    assert_eq!(before.diff(&ctx.snapshot()), "");
}

//! CHECK fails for every missing or altered object.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::overlay;
use common::{CRIO, attached, both, config, host_veth, owner, qdiscs};
use ferrule_bandwidth::owner::shared_name;
use serde_json::{Value, json};

/// A later plugin such as tuning, or an operator, changes the MTU: CHECK accepts what ADD has made.
#[test]
fn another_mtu_is_no_damage() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let veth = host_veth(&result);
    let add = config("1.0.0", both(1_000_000, 4_294_967_295), Some(&result));
    let added = ctx.add(&attachment, &add);
    let checked = config("1.0.0", both(1_000_000, 4_294_967_295), Some(&added));
    for mtu in [1400, 9000, 68, 65_535, 1500] {
        ctx.node.sh(&format!("ip link set {veth} mtu {mtu}")).unwrap();
        ctx.check(&attachment, &checked);
    }
}

#[test]
fn every_loss_and_change_is_detected() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let (veth, ifb) = (host_veth(&result), shared_name(&owner("one", "eth0")));
    let add = config("1.0.0", both(10_000_000, CRIO), Some(&result));
    for (damage, expected) in [
        ("tc qdisc del dev VETH root", "Failed to find qdisc"),
        ("tc qdisc replace dev VETH root pfifo", "Failed to find qdisc"),
        (
            "tc qdisc change dev VETH root handle 1: tbf rate 20mbit burst 31250 limit 62500",
            "Rate doesn't match",
        ),
        (
            "tc qdisc change dev VETH root handle 1: tbf rate 10mbit burst 31250 limit 62499",
            "Limit doesn't match",
        ),
        (
            "tc qdisc change dev VETH root handle 1: tbf rate 10mbit burst 41250 limit 62500",
            "Buffer doesn't match",
        ),
        ("tc qdisc del dev IFB root", "Failed to find qdisc"),
        (
            "tc qdisc change dev IFB root handle 1: tbf rate 20mbit burst 31250 limit 62500",
            "Rate doesn't match",
        ),
        ("ip link set IFB down", "is down"),
        ("ip link del IFB", "get ifb device: Link not found"),
        ("tc qdisc del dev VETH ingress", "has no ingress qdisc"),
        ("tc filter del dev VETH ingress", "has no filter that redirects to"),
        (
            "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 1 protocol ip u32 match u32 0 0 action mirred egress redirect dev IFB",
            "has no filter",
        ),
        (
            "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 1 protocol all u32 match u32 1 1 action mirred egress redirect dev IFB",
            "has no filter",
        ),
        (
            "tc filter del dev VETH ingress; ip link add ifb9 type ifb; tc filter add dev VETH ingress pref 1 protocol all u32 match u32 0 0 action mirred egress redirect dev ifb9",
            "has no filter",
        ),
        (
            "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 1 protocol all u32 match u32 0 0 action mirred egress mirror dev IFB",
            "has no filter",
        ),
        ("ip link del IFB; ip link add IFB type ifb; ip link set IFB up", "get ifb device: Link not found"),
        (
            "alias=$(cat /sys/class/net/IFB/ifalias); ip link del IFB; ip link add IFB type ifb; ip link set IFB up alias \"$alias\"",
            "has MAC address",
        ),
    ] {
        let added = ctx.add(&attachment, &add);
        let checked = config("1.0.0", both(10_000_000, CRIO), Some(&added));
        ctx.check(&attachment, &checked);
        ctx.node.sh(&damage.replace("VETH", &veth).replace("IFB", &ifb)).unwrap();
        let error = ctx.fail("CHECK", &attachment, &checked);
        assert!(error.contains(expected), "{damage}: {error}");
        ctx.node.sh(&format!("ip link del ifb9 2>&-; tc qdisc del dev {veth} root 2>&-; tc qdisc del dev {veth} ingress 2>&-; ip link del {ifb} 2>&-; true")).unwrap();
    }
}

#[test]
fn another_queue_than_the_configured_one_is_detected() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let conf = |keys: Value, result: &Value| {
        overlay(&config("1.0.0", both(10_000_000, 1_000_000), Some(result)), &keys)
    };
    // tc prints a queue that is shorter than the bucket in bytes, any other one in microseconds.
    for (keys, shown, value) in
        [(json!({"ingressLimit": 70_000}), "limit", 70_000), (json!({"ingressLatency": 10}), "lat", 10_000)]
    {
        let added = ctx.add(&attachment, &conf(keys.clone(), &result));
        ctx.check(&attachment, &conf(keys.clone(), &added));
        let found = &qdiscs(&ctx, &host_veth(&result))[0]["options"];
        assert_eq!(found[shown], value, "{keys}: {found}");
        let error = ctx.fail("CHECK", &attachment, &conf(json!({}), &added));
        assert!(error.contains("Limit doesn't match"), "{keys}: {error}");
    }
}

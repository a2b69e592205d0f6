//! Our plugin and the reference's used alternately.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::Origin;
use common::{
    CONTAINERD, CRIO, KUBELET, add_bridge, attached, both, config, filters, host_veth, ifbs, limits, owner,
    plugins, qdiscs, reference, snapshot,
};
use ferrule_bandwidth::owner::{own_name, shared_name};
use serde_json::Value;
use serde_json::json;

/// Limits that give the same parameters in both implementations.
fn sound() -> Value {
    both(100_000_000, 10_000_000)
}

#[test]
fn sound_limits_give_equal_state() {
    for limits in [sound(), limits((40_000_000_000, 4_000_000_000), (123_456_789, 987_654))] {
        let made = [Origin::Reference, Origin::Ours].map(|by| {
            let (ctx, pod, result) = attached("one");
            let plugin = ctx.with_plugins(plugins(Origin::Reference, by));
            let config = config("1.0.0", limits.clone(), Some(&result));
            let added = plugin.add(&pod.attachment("eth0"), &config);
            let (veth, ifb) = (host_veth(&result), shared_name(&owner("one", "eth0")));
            let disciplines = [&veth, &ifb].map(|link| qdiscs(&ctx, link).to_string());
            let names: Vec<String> =
                added["interfaces"].as_array().unwrap().iter().map(|i| i["name"].to_string()).collect();
            let link = ctx
                .node
                .sh(&format!("ip -o -d link show {ifb} | grep -o 'mtu [0-9]*\\|qlen [0-9]*\\|ifb'"))
                .unwrap();
            let filter = filters(&ctx, &veth).lines().take(4).collect::<Vec<_>>().join("\n");
            (disciplines, names.len(), names.last().cloned(), link, filter)
        });
        assert_eq!(made[0], made[1]);
    }
}

/// With `referenceNumbers`, the kernel's parameters equal the reference's for every burst that runtimes send.
#[test]
fn reference_numbers_equal_the_references() {
    for (rate, burst) in [
        (10_000_000, CONTAINERD),
        (1_000_000, CONTAINERD),
        (1_000, CONTAINERD),
        (100_000_000, CONTAINERD),
        (1_000_000, CRIO),
        (1_000_000_000, CRIO),
        (40_000_000_000, CONTAINERD),
        (10_000_000, KUBELET),
        (8_000, 80),
    ] {
        let made = [Origin::Reference, Origin::Ours].map(|by| {
            let (ctx, pod, result) = attached("one");
            let plugin = ctx.with_plugins(plugins(Origin::Reference, by));
            let mut config = config("1.0.0", both(rate, burst), Some(&result));
            config["referenceNumbers"] = json!(true);
            plugin.add(&pod.attachment("eth0"), &config);
            [host_veth(&result), shared_name(&owner("one", "eth0"))]
                .map(|link| ctx.node.sh(&format!("tc -d qdisc show dev {link} | grep tbf")).unwrap())
        });
        assert_eq!(made[0], made[1], "{rate} {burst}");
    }
}

#[test]
fn state_of_the_reference_is_checked_adopted_and_removed() {
    for limits in [sound(), both(10_000_000, CONTAINERD), both(1_000_000, CRIO)] {
        let (ctx, pod, result) = attached("one");
        let go = reference(&ctx);
        let attachment = pod.attachment("eth0");
        let before = snapshot(&ctx);
        let add = config("1.0.0", limits.clone(), Some(&result));
        let added = go.add(&attachment, &add);
        let then = config("1.0.0", limits.clone(), Some(&added));
        ctx.check(&attachment, &then);
        // ADD adopts the reference's IFB and sets its alias.
        let again = ctx.add(&attachment, &add);
        assert_eq!(again["interfaces"], added["interfaces"]);
        assert_eq!(ifbs(&ctx).len(), 1);
        ctx.check(&attachment, &then);
        ctx.del(&attachment, &then);
        assert_eq!(before.diff(&snapshot(&ctx)), "");
        // DEL removes the reference's IFB, with and without the namespace.
        for netns in [attachment.netns.clone(), String::new()] {
            go.add(&attachment, &add);
            let mut attachment = attachment.clone();
            attachment.netns = netns;
            ctx.del(&attachment, &config("1.0.0", json!(null), None));
            assert_eq!(ifbs(&ctx), Vec::<String>::new());
            let veth = host_veth(&result);
            ctx.node
                .sh(&format!("tc qdisc del dev {veth} root 2>&-; tc qdisc del dev {veth} ingress 2>&-; true"))
                .unwrap();
        }
    }
}

#[test]
fn reference_checks_and_removes_our_state() {
    let (ctx, pod, result) = attached("one");
    let go = reference(&ctx);
    let attachment = pod.attachment("eth0");
    let added = ctx.add(&attachment, &config("1.0.0", sound(), Some(&result)));
    let then = config("1.0.0", sound(), Some(&added));
    go.check(&attachment, &then);
    go.del(&attachment, &then);
    assert_eq!(ifbs(&ctx), Vec::<String>::new());
    ctx.del(&attachment, &then);
    pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
}

/// The reference made the first interface, before the plugins were replaced. Ours makes the second.
#[test]
fn second_interface_beside_the_references_first() {
    let (ctx, pod, result) = attached("one");
    let second = add_bridge(&ctx, &pod, "net1");
    let go = reference(&ctx);
    let before = snapshot(&ctx);
    let config_of = |result: &Value| config("1.0.0", both(10_000_000, CRIO), Some(result));
    go.add(&pod.attachment("eth0"), &config_of(&result));
    let first_only = snapshot(&ctx);
    for _ in 0..2 {
        ctx.add(&pod.attachment("net1"), &config_of(&second));
    }
    assert_eq!(ifbs(&ctx), [shared_name(&owner("one", "eth0")), own_name(&owner("one", "net1"))]);
    for _ in 0..2 {
        ctx.del(&pod.attachment("net1"), &config("1.0.0", json!(null), None));
        assert_eq!(first_only.diff(&snapshot(&ctx)), "");
    }
    ctx.del(&pod.attachment("eth0"), &config("1.0.0", json!(null), None));
    assert_eq!(before.diff(&snapshot(&ctx)), "");
}

//! Several interfaces of a container, colliding names, and host interfaces that no result reports.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::Origin;
use common::{
    CONTAINERD, CRIO, add_bridge, attached, both, config, context, host_veth, ifbs, network, owner, qdiscs,
    shaped, snapshot,
};
use ferrule_bandwidth::owner::{own_name, shared_name};
use serde_json::json;

#[test]
fn two_interfaces_of_one_container() {
    for bridge in [Origin::Ours, Origin::Reference] {
        for first in ["eth0", "net1"] {
            let ctx = context(bridge);
            let pod = ctx.pod("one");
            let runtime = ctx.runtime();
            let network = network("1.0.0", json!({}));
            let second = if first == "eth0" { "net1" } else { "eth0" };
            let before = snapshot(&ctx);
            let attachments =
                [first, second].map(|ifname| shaped(&pod, ifname, both(10_000_000, CONTAINERD)));
            for attachment in &attachments {
                runtime.add(&network, attachment).unwrap();
            }
            let both_names = ifbs(&ctx);
            assert_eq!(both_names, [shared_name(&owner("one", first)), own_name(&owner("one", second))]);
            for attachment in &attachments {
                runtime.check(&network, attachment).unwrap();
            }
            runtime.del(&network, &attachments[0]).unwrap();
            runtime.del(&network, &attachments[0]).unwrap();
            assert_eq!(ifbs(&ctx), both_names[1..]);
            runtime.check(&network, &attachments[1]).unwrap();
            runtime.del(&network, &attachments[1]).unwrap();
            assert_eq!(before.diff(&snapshot(&ctx)), "");
        }
    }
}

/// Both ADDs try the reference's IFB name; the loser of the race uses its own name.
#[test]
fn two_interfaces_concurrently() {
    let (ctx, pod, result) = attached("one");
    let second = add_bridge(&ctx, &pod, "net1");
    let before = snapshot(&ctx);
    for _ in 0..20 {
        for verb in ["ADD", "DEL"] {
            std::thread::scope(|scope| {
                for (ifname, result) in [("eth0", &result), ("net1", &second)] {
                    let config = config("1.0.0", both(10_000_000, CRIO), Some(result));
                    let exec = ctx.exec(verb, &pod.attachment(ifname), &config);
                    let node = &ctx.node;
                    scope.spawn(move || assert!(node.call(&exec).unwrap().success()));
                }
            });
            assert_eq!(ifbs(&ctx).len(), if verb == "ADD" { 2 } else { 0 });
        }
    }
    assert_eq!(before.diff(&snapshot(&ctx)), "");
}

/// Network "ab" with container "c" and network "a" with container "bc": the reference gives both IFBs the
/// same name.
#[test]
fn colliding_names_of_the_reference() {
    let ctx = context(Origin::Reference);
    let runtime = ctx.runtime();
    let (one, two) = (ctx.pod("c"), ctx.pod("bc"));
    let mut networks = ["ab", "a"].map(|name| {
        let mut network = network("1.0.0", json!({}));
        network.name = name.to_owned();
        network
    });
    networks[1].plugins[0].insert("bridge".to_owned(), json!("cni1"));
    networks[1].plugins[0]["ipam"]["subnet"] = json!("10.2.0.0/16");
    runtime.add(&networks[0], &shaped(&one, "eth0", both(10_000_000, CRIO))).unwrap();
    runtime.add(&networks[1], &shaped(&two, "eth0", both(10_000_000, CRIO))).unwrap();
    assert_eq!(ifbs(&ctx).len(), 2);
    runtime.del(&networks[1], &shaped(&two, "eth0", both(10_000_000, CRIO))).unwrap();
    runtime.check(&networks[0], &shaped(&one, "eth0", both(10_000_000, CRIO))).unwrap();
    runtime.del(&networks[0], &shaped(&one, "eth0", both(10_000_000, CRIO))).unwrap();
    assert_eq!(ifbs(&ctx), Vec::<String>::new());
}

/// The kernel tells the host's veth, even if the result reports no or wrong interfaces.
#[test]
fn unreported_host_veth_is_found() {
    for interfaces in
        [json!([]), json!([{"name": "eth0", "sandbox": "/run/netns/one"}]), json!([{"name": "lo"}])]
    {
        let (ctx, pod, result) = attached("one");
        let before = snapshot(&ctx);
        let mut reported = result.clone();
        reported["interfaces"] = interfaces;
        let config = config("1.0.0", both(10_000_000, CRIO), Some(&reported));
        let added = ctx.add(&pod.attachment("eth0"), &config);
        assert_eq!(qdiscs(&ctx, &host_veth(&result))[0]["kind"], "tbf");
        let check = self::config("1.0.0", both(10_000_000, CRIO), Some(&added));
        ctx.check(&pod.attachment("eth0"), &check);
        ctx.del(&pod.attachment("eth0"), &config);
        assert_eq!(before.diff(&snapshot(&ctx)), "");
    }
}

#[test]
fn container_without_a_peer_on_the_host_is_an_error() {
    let ctx = context(Origin::Reference);
    let (pod, other) = (ctx.pod("one"), ctx.pod("other"));
    ctx.node.sh("ip link add uplink type bridge && ip link set uplink up").unwrap();
    let result =
        json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/one"}]});
    let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
    let before = snapshot(&ctx);
    let error_now = || {
        let errors = ["ADD", "CHECK"].map(|verb| ctx.fail(verb, &pod.attachment("eth0"), &config));
        assert_eq!(errors[0], errors[1]);
        ctx.del(&pod.attachment("eth0"), &config);
        assert_eq!(before.diff(&snapshot(&ctx)), "");
        errors[0].clone()
    };
    let error = error_now();
    assert!(
        error.contains(
            "container interface eth0 has no veth peer: could not look up \"eth0\": Link not found"
        ),
        "{error}"
    );
    pod.sh("ip link add eth0 type bridge").unwrap();
    let error = error_now();
    assert!(error.contains("interface \"eth0\" was not a veth interface"), "{error}");
    pod.sh("ip link del eth0").unwrap();

    // The peer is in a third namespace; the host may have a veth of another container with the same index.
    pod.sh("ip link add eth0 type veth peer name x netns other && ip link set eth0 up").unwrap();
    let peer: u32 = other
        .sh("cat /sys/class/net/x/ifindex")
        .or_else(|_| other.sh("ip -o link show x | cut -d: -f1"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let error = error_now();
    assert!(error.contains(&format!("veth peer with index {peer} is not in host ns")), "{error}");
    // The peer stays where it is; the host gets a veth with its index.
    let third = ctx.pod("third");
    ctx.node
        .sh(&format!(
            "ip link add decoy index {peer} type veth peer name eth0 netns {} || ip link show",
            third.name()
        ))
        .unwrap();
    let before = snapshot(&ctx);
    let error = ctx.fail("ADD", &pod.attachment("eth0"), &config);
    assert!(error.contains("is not in host ns"), "{error}");
    assert_eq!(before.diff(&snapshot(&ctx)), "");
}

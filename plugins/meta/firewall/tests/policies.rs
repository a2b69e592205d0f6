//! `ingressPolicy`: which pods reach which. The tests need root, `nft` and `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;

use cni_lab::Place as _;
use cni_lab::testing::{Firewalld, overlay};
use cni_runner::Attachment;
use common::{World, expect, expect_pod, host_port, network_of, saved};
use serde_json::json;

/// Pods of three bridges: near with "same-bridge", far with the policy under test, and free without a policy.
fn separate(backend: &str, policy: &str, bridge_nf: bool) {
    let what = format!("{backend}, {policy}, bridge-nf {bridge_nf}");
    let world = World::new();
    world.set_bridge_nf(bridge_nf);
    let _firewalld = (backend == "firewalld").then(|| Firewalld::start(&world.node));
    let network = |name: &str, number: u8, policy: &str| {
        network_of(name, name, number, "1.1.0", json!({"backend": backend, "ingressPolicy": policy}))
    };
    let near = network("near", 1, "same-bridge");
    let far = network("far", 2, policy);
    let free = world.add("free1", &network("free", 3, "open"));
    let [near1, near2] = ["near1", "near2"].map(|name| world.add(name, &near));
    let far1 = world.add_by(&world, "far1", &far, &host_port());
    let far2 = world.add("far2", &far);
    let all = [&free, &near1, &near2, &far1, &far2];
    for added in all {
        added.serve(80);
        assert_eq!(added.check(), Ok(()), "{what}");
    }
    expect_pod(&near1, &near2, true, &what);
    expect_pod(&near1, &far1, false, &what);
    expect_pod(&far1, &near1, false, &what);
    expect_pod(&far1, &far2, policy != "isolated", &what);
    expect_pod(&far1, &free, true, &what);
    // Only "strict" keeps others out than guarded bridges.
    expect_pod(&free, &near1, true, &what);
    expect_pod(&free, &far1, policy != "strict", &what);
    for outside in &world.outside {
        let node = outside.node_address();
        expect(outside, SocketAddr::new(node, 8080), true, &format!("{what}: host port"));
        expect(
            &free.pod,
            SocketAddr::new(node, 8080),
            true,
            &format!("{what}: host port from an open bridge"),
        );
        let direct = SocketAddr::new(far2.address(node.is_ipv6()), 80);
        let is_open = policy != "strict" && backend != "firewalld";
        expect(outside, direct, is_open, &format!("{what}: inbound"));
    }
    for added in all {
        added.del();
    }
}

#[test]
fn policies_with_nftables() {
    for (policy, bridge_nf) in
        [("same-bridge", true), ("isolated", false), ("isolated", true), ("strict", false)]
    {
        separate("nftables", policy, bridge_nf);
    }
}

#[test]
fn policies_with_iptables() {
    for (policy, bridge_nf) in
        [("same-bridge", true), ("isolated", false), ("isolated", true), ("strict", false)]
    {
        separate("iptables", policy, bridge_nf);
    }
}

#[test]
fn policies_with_firewalld() {
    separate("firewalld", "isolated", false);
    separate("firewalld", "strict", true);
}

/// The policy of a bridge follows the configuration of its own network. Another network does not weaken it.
#[test]
fn a_policy_can_be_changed() {
    let world = World::new();
    let network = |name: &str, policy: &str| {
        network_of(name, "cni0", 0, "1.1.0", json!({"backend": "nftables", "ingressPolicy": policy}))
    };
    let sets = || ["guarded", "self", "noicc", "strict"].map(|set| world.set(set).contains("cni0"));
    let one = world.add("one", &network("pods", "isolated"));
    assert_eq!(sets(), [true, true, true, false]);
    let call = |name: &str, policy: &str| {
        let config = overlay(&one.config(), &json!({"ingressPolicy": policy, "name": name}));
        world.ctx.add(&Attachment::new(policy, one.attachment.netns.clone(), "eth0"), &config);
    };
    call("others", "open");
    call("others", "same-bridge");
    assert_eq!(sets(), [true, true, true, false]);
    call("pods", "same-bridge");
    assert_eq!(sets(), [true, true, false, false]);
    call("pods", "strict");
    assert_eq!(sets(), [true, true, false, true]);
    call("pods", "open");
    assert_eq!(sets(), [false; 4]);
    // GC forgets a bridge that is gone.
    call("pods", "isolated");
    world.runtime().gc(&network("pods", "isolated"), Some(&[])).unwrap();
    assert_eq!(sets(), [true, true, true, false]);
    world.node.sh("ip link del cni0").unwrap();
    world.runtime().gc(&network("pods", "isolated"), Some(&[])).unwrap();
    assert_eq!(sets(), [false; 4]);
}

/// The reference guards the first interface of the result: with macvlan the uplink of the node.
#[test]
fn a_policy_needs_a_bridge_and_changes_nothing_without_one() {
    let world = World::new();
    let one = world.add("one", &network_of("pods", "cni0", 0, "1.1.0", json!({"backend": "nftables"})));
    let before = world.table();
    for backend in ["nftables", "iptables"] {
        let mut config = overlay(&one.config(), &json!({"ingressPolicy": "isolated", "backend": backend}));
        config["prevResult"]["interfaces"] =
            json!([{"name": "eth0", "sandbox": one.attachment.netns}, {"name": "lo"}]);
        config["prevResult"]["ips"] = json!([{"address": "10.1.0.9/24", "interface": 0}]);
        let error = world.fail("ADD", &one.attachment, &config);
        let text = r#"interface needs to be set for ingress policy "isolated", make sure to chain "firewall" plugin with "bridge""#;
        assert_eq!(error.msg, text);
        config["prevResult"]["ips"] = json!([{"address": "10.1.0.9/24"}]);
        config["prevResult"]["interfaces"] = json!([{"name": ""}]);
        assert_eq!(world.fail("ADD", &one.attachment, &config).msg, "got empty bridge name");
        config["prevResult"]["ips"] = json!([]);
        world.ctx.add(&one.attachment, &config);
    }
    // A + at the end is a wildcard of iptables.
    world.node.sh("ip link add br+ type bridge").unwrap();
    let mut config = overlay(&one.config(), &json!({"ingressPolicy": "same-bridge", "backend": "iptables"}));
    config["prevResult"]["interfaces"] = json!([{"name": "br+"}]);
    config["prevResult"]["ips"] = json!([{"address": "10.1.0.9/24"}]);
    let attachment = Attachment::new("wild", one.attachment.netns.clone(), "eth0");
    assert!(world.fail("ADD", &attachment, &config).msg.contains("wildcard"));
    assert_eq!(world.table(), before);
    assert!(!saved(&world, "nft").contains("CNI-"));
}

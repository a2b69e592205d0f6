//! `ipMasq`: traffic from a pod to outside its network has the node's address, from ADD until DEL.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{
    StubIpam, TestContext, assert_unchanged, host_local, overlay, ports, sysctl, with_prev,
};
use cni_lab::{Client, Place as _, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{assert_only_shared_changed, config, ours, wait_for_dad, with_stub};
use serde_json::{Value, json};

const TABLE: &str = "inet cni_plugins_masquerade";

/// The number of masquerading rules whose line contains `id`; all of them if it is empty.
fn rules(ctx: &TestContext, id: &str) -> usize {
    let list = ctx.node.sh(&format!("nft list chain {TABLE} masq_checks 2>/dev/null || true")).unwrap();
    list.lines().filter(|line| line.contains("masquerade comment") && line.contains(id)).count()
}

fn conf(keys: &Value) -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    let base = config("1.0.0", &json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}));
    overlay(&base, keys)
}

/// An outside client with a route to the node but none to the pods.
fn client_without_route(ctx: &TestContext, subnet: &str, family: &str) -> Client {
    let client = ctx.node.outside_client(subnet).unwrap();
    client.sh(&format!("ip {family} route del default")).unwrap();
    wait_for_dad(ctx, &client);
    client
}

#[test]
fn outside_sees_the_nodes_address() {
    let ctx = ours();
    let client = client_without_route(&ctx, "192.0.2.0/24", "-4");
    let client6 = client_without_route(&ctx, "2001:db8::/64", "-6");
    let (pod, plain) = (ctx.pod("pod1"), ctx.pod("plain"));
    ctx.add(&pod.attachment("eth0"), &conf(&json!({})));
    ctx.add(&plain.attachment("eth0"), &conf(&json!({"ipMasq": false})));
    for target in [client.address(), client6.address()] {
        pod.sh(&format!("ping -c 1 -W 2 {target}")).unwrap();
        // Without masquerading the client cannot answer.
        assert!(plain.sh(&format!("ping -c 1 -W 1 {target}")).is_err());
    }
    // Traffic within the network keeps its source address.
    ctx.node
        .sh("nft 'add table ip watch; add chain ip watch in { type filter hook input priority 0 ; };
        add rule ip watch in ip saddr 10.1.0.2 icmp type echo-request counter'")
        .unwrap();
    pod.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
    assert!(ctx.node.sh("nft list table ip watch").unwrap().contains("packets 1"));
    assert_eq!((rules(&ctx, "pod1"), rules(&ctx, "plain")), (2, 0));
}

#[test]
fn each_address_has_a_rule() {
    for (assigned, expected) in [
        (&["10.1.0.2/24"][..], 1),
        (&["fd00:1::2/64"], 1),
        (&["10.1.0.2/24", "10.1.0.3/24", "fd00:1::2/64"], 3),
    ] {
        let stub = StubIpam::assigning("1.0.0", assigned);
        let ctx = with_stub(&stub);
        let pod = ctx.pod("pod1");
        let conf = conf(&json!({"ipam": {"type": "stub"}}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        assert_eq!(rules(&ctx, "pod1"), expected);
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        ctx.del(&pod.attachment("eth0"), &conf);
        assert_eq!(rules(&ctx, ""), 0);
    }
}

/// Without `isGateway` the plugin does not enable forwarding.
#[test]
fn masquerading_does_not_enable_forwarding() {
    let ctx = ours();
    let keys = json!({"isDefaultGateway": false});
    ctx.add(&ctx.pod("pod1").attachment("eth0"), &conf(&keys));
    assert_eq!(rules(&ctx, "pod1"), 2);
    assert_eq!(sysctl(&ctx.node, "ipv4/ip_forward"), "0");
}

#[test]
fn every_kind_of_del_removes_the_rules() {
    for kind in
        ["plain", "no namespace path", "namespace gone", "file in its place", "ipMasq off", "interface gone"]
    {
        let ctx = ours();
        let (pod, other) = (ctx.pod("pod1"), ctx.pod("other"));
        let conf = conf(&json!({}));
        ctx.add(&other.attachment("eth0"), &conf);
        let before = ctx.snapshot();
        ctx.add(&pod.attachment("eth0"), &conf);
        assert_eq!((rules(&ctx, "pod1"), rules(&ctx, "other")), (2, 2), "{kind}");
        let attachment = pod.attachment("eth0");
        match kind {
            "no namespace path" => ctx.del(&Attachment::new("pod1", "", "eth0"), &conf),
            "namespace gone" => {
                pod.delete().unwrap();
                ctx.del(&attachment, &conf);
            }
            "file in its place" => {
                pod.unmount_only().unwrap();
                ctx.del(&attachment, &conf);
            }
            "ipMasq off" => ctx.del(&attachment, &overlay(&conf, &json!({"ipMasq": false}))),
            "interface gone" => {
                pod.sh("ip link del eth0").unwrap();
                ctx.del(&attachment, &conf);
            }
            _ => ctx.del(&attachment, &conf),
        }
        assert_eq!((rules(&ctx, "pod1"), rules(&ctx, "other")), (0, 2), "{kind}");
        eventually(TIMEOUT, || ports(&ctx.node, "br0").len() == 1);
        assert_only_shared_changed(&ctx, &before, kind);
    }
}

/// Each interface of a container has its own rules.
#[test]
fn other_interface_keeps_its_rules() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let conf = conf(&json!({}));
    ctx.add(&pod.attachment("eth0"), &conf);
    let result = ctx.add(&pod.attachment("eth1"), &conf);
    ctx.del(&pod.attachment("eth0"), &conf);
    assert_eq!(rules(&ctx, "if: eth1, id: pod1"), 2);
    assert_eq!(rules(&ctx, ""), 2);
    let routes = json!({"routes": []});
    ctx.check(&pod.attachment("eth1"), &with_prev(&conf, &overlay(&result, &routes)));
}

#[test]
fn no_table_without_ip_masq() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    ctx.add(&pod.attachment("eth0"), &conf(&json!({"ipMasq": false})));
    assert_eq!(ctx.node.sh("nft list tables").unwrap(), "");
    let before = ctx.snapshot();
    // A layer 2 network has no addresses to masquerade.
    let two = ctx.pod("two");
    ctx.add(&two.attachment("eth0"), &config("1.0.0", &json!({"ipMasq": true})));
    assert_eq!(ctx.node.sh("nft list tables").unwrap(), "");
    ctx.del(&two.attachment("eth0"), &config("1.0.0", &json!({"ipMasq": true})));
    assert_unchanged(&ctx.node, &before, "a layer 2 network with ipMasq");
}

#[test]
fn the_default_backend_is_nftables() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    for backend in [json!("nftables"), json!(""), json!(null)] {
        let conf = conf(&json!({"ipMasqBackend": backend}));
        ctx.add(&pod.attachment("eth0"), &conf);
        assert_eq!(rules(&ctx, "pod1"), 2, "{backend}");
        ctx.del(&pod.attachment("eth0"), &conf);
    }
}

/// A firewall may have flushed the base chain. The next ADD restores it for all attachments.
#[test]
fn next_add_restores_a_flushed_chain() {
    let ctx = ours();
    let client = client_without_route(&ctx, "192.0.2.0/24", "-4");
    let pod = ctx.pod("pod1");
    ctx.add(&pod.attachment("eth0"), &conf(&json!({})));
    ctx.node.sh(&format!("nft flush chain {TABLE} postrouting")).unwrap();
    assert!(pod.sh(&format!("ping -c 1 -W 0.5 {}", client.address())).is_err());
    ctx.add(&ctx.pod("pod2").attachment("eth0"), &conf(&json!({})));
    pod.sh(&format!("ping -c 1 -W 2 {}", client.address())).unwrap();
}

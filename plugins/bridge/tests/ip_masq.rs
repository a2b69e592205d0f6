//! `ipMasq`: what a pod sends out of its network leaves with the node's address, as long as the pod is there.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Lab, Stub, config, host_local, overlay, settled, sysctl, unchanged, with_prev};
use conformance::fixture::{Client, PATIENCE, Place as _, eventually};
use conformance::runner::Attachment;
use serde_json::{Value, json};

const TABLE: &str = "inet cni_plugins_masquerade";

/// The rules that name the attachment, or all of them.
fn rules(lab: &Lab, id: &str) -> usize {
    let list = lab.node.sh(&format!("nft list chain {TABLE} masq_checks 2>/dev/null || true")).unwrap();
    list.lines().filter(|line| line.contains("masquerade comment") && line.contains(id)).count()
}

fn conf(keys: &Value) -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    let base = config("1.0.0", &json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}));
    overlay(&base, keys)
}

/// An outside client that has no way back to the pods, only to the node.
fn secluded(lab: &Lab, subnet: &str, family: &str) -> Client {
    let client = lab.node.outside_client(subnet).unwrap();
    client.sh(&format!("ip {family} route del default")).unwrap();
    settled(lab, &client);
    client
}

#[test]
fn the_world_sees_the_node() {
    let lab = Lab::new();
    let client = secluded(&lab, "192.0.2.0/24", "-4");
    let client6 = secluded(&lab, "2001:db8::/64", "-6");
    let (pod, plain) = (lab.pod("pod1"), lab.pod("plain"));
    lab.add(&pod.attachment("eth0"), &conf(&json!({})));
    lab.add(&plain.attachment("eth0"), &conf(&json!({"ipMasq": false})));
    for target in [client.address(), client6.address()] {
        pod.sh(&format!("ping -c 1 -W 2 {target}")).unwrap();
        // That the client would not answer a pod's own address.
        assert!(plain.sh(&format!("ping -c 1 -W 1 {target}")).is_err());
    }
    // Within the network addresses stay what they are.
    lab.node
        .sh("nft 'add table ip watch; add chain ip watch in { type filter hook input priority 0 ; };
        add rule ip watch in ip saddr 10.1.0.2 icmp type echo-request counter'")
        .unwrap();
    pod.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
    assert!(lab.node.sh("nft list table ip watch").unwrap().contains("packets 1"));
    assert_eq!((rules(&lab, "pod1"), rules(&lab, "plain")), (2, 0));
}

#[test]
fn each_family_has_its_rule() {
    for (assigned, expected) in [
        (&["10.1.0.2/24"][..], 1),
        (&["fd00:1::2/64"], 1),
        (&["10.1.0.2/24", "10.1.0.3/24", "fd00:1::2/64"], 3),
    ] {
        let stub = Stub::assigning("1.0.0", assigned);
        let lab = Lab::with_stub(&stub);
        let pod = lab.pod("pod1");
        let conf = conf(&json!({"ipam": {"type": "stub"}}));
        let result = lab.add(&pod.attachment("eth0"), &conf);
        assert_eq!(rules(&lab, "pod1"), expected);
        lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        lab.del(&pod.attachment("eth0"), &conf);
        assert_eq!(rules(&lab, ""), 0);
    }
}

/// Without `isGateway` there is nothing to forward through, and forwarding is not ours to switch on.
#[test]
fn masquerading_does_not_switch_forwarding_on() {
    let lab = Lab::new();
    let keys = json!({"isDefaultGateway": false});
    lab.add(&lab.pod("pod1").attachment("eth0"), &conf(&keys));
    assert_eq!(rules(&lab, "pod1"), 2);
    assert_eq!(sysctl(&lab.node, "ipv4/ip_forward"), "0");
}

#[test]
fn rules_go_with_every_kind_of_del() {
    for kind in
        ["plain", "no namespace path", "namespace gone", "file in its place", "ipMasq off", "interface gone"]
    {
        let lab = Lab::new();
        let (pod, other) = (lab.pod("pod1"), lab.pod("other"));
        let conf = conf(&json!({}));
        lab.add(&other.attachment("eth0"), &conf);
        let before = lab.snapshot();
        lab.add(&pod.attachment("eth0"), &conf);
        assert_eq!((rules(&lab, "pod1"), rules(&lab, "other")), (2, 2), "{kind}");
        let attachment = pod.attachment("eth0");
        match kind {
            "no namespace path" => lab.del(&Attachment::new("pod1", "", "eth0"), &conf),
            "namespace gone" => {
                pod.delete().unwrap();
                lab.del(&attachment, &conf);
            }
            "file in its place" => {
                pod.unmount_only().unwrap();
                lab.del(&attachment, &conf);
            }
            "ipMasq off" => lab.del(&attachment, &overlay(&conf, &json!({"ipMasq": false}))),
            "interface gone" => {
                pod.sh("ip link del eth0").unwrap();
                lab.del(&attachment, &conf);
            }
            _ => lab.del(&attachment, &conf),
        }
        assert_eq!((rules(&lab, "pod1"), rules(&lab, "other")), (0, 2), "{kind}");
        eventually(PATIENCE, || common::ports(&lab.node, "br0").len() == 1);
        common::after(&lab, &before, kind);
    }
}

/// Each interface of a container has its own rules.
#[test]
fn the_other_interface_keeps_its_rules() {
    let lab = Lab::new();
    let pod = lab.pod("pod1");
    let conf = conf(&json!({}));
    lab.add(&pod.attachment("eth0"), &conf);
    let result = lab.add(&pod.attachment("eth1"), &conf);
    lab.del(&pod.attachment("eth0"), &conf);
    assert_eq!(rules(&lab, "if: eth1, id: pod1"), 2);
    assert_eq!(rules(&lab, ""), 2);
    let routes = json!({"routes": []});
    lab.check(&pod.attachment("eth1"), &with_prev(&conf, &overlay(&result, &routes)));
}

#[test]
fn without_ip_masq_no_table_is_made() {
    let lab = Lab::new();
    let pod = lab.pod("pod1");
    lab.add(&pod.attachment("eth0"), &conf(&json!({"ipMasq": false})));
    assert_eq!(lab.node.sh("nft list tables").unwrap(), "");
    let before = lab.snapshot();
    // Layer 2 has no addresses to masquerade.
    let two = lab.pod("two");
    lab.add(&two.attachment("eth0"), &config("1.0.0", &json!({"ipMasq": true})));
    assert_eq!(lab.node.sh("nft list tables").unwrap(), "");
    lab.del(&two.attachment("eth0"), &config("1.0.0", &json!({"ipMasq": true})));
    unchanged(&lab.node, &before, "a layer 2 network with ipMasq");
}

#[test]
fn the_backend_is_nftables() {
    let lab = Lab::new();
    let pod = lab.pod("pod1");
    let before = lab.snapshot();
    let iptables = conf(&json!({"ipMasqBackend": "iptables"}));
    lab.refused("ADD", &pod.attachment("eth0"), &iptables).expect(2, "iptables");
    unchanged(&lab.node, &before, "a refused backend");
    for backend in [json!("nftables"), json!(""), json!(null)] {
        let conf = conf(&json!({"ipMasqBackend": backend}));
        lab.add(&pod.attachment("eth0"), &conf);
        assert_eq!(rules(&lab, "pod1"), 2, "{backend}");
        lab.del(&pod.attachment("eth0"), &conf);
    }
}

/// Somebody has flushed the base chain, as careless firewalls do: the next ADD mends it, for all.
#[test]
fn a_flushed_chain_is_mended_by_the_next_add() {
    let lab = Lab::new();
    let client = secluded(&lab, "192.0.2.0/24", "-4");
    let pod = lab.pod("pod1");
    lab.add(&pod.attachment("eth0"), &conf(&json!({})));
    lab.node.sh(&format!("nft flush chain {TABLE} postrouting")).unwrap();
    assert!(pod.sh(&format!("ping -c 1 -W 0.5 {}", client.address())).is_err());
    lab.add(&lab.pod("pod2").attachment("eth0"), &conf(&json!({})));
    pod.sh(&format!("ping -c 1 -W 2 {}", client.address())).unwrap();
}

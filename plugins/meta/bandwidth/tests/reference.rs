//! Our plugin and the reference's used alternately.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use common::{
    Bins, By, CONTAINERD, CRIO, KUBELET, attached, both, bridge_only, call, config, filters, host_veth, ifbs,
    limits, owner, qdiscs, snapshot, succeed,
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
        let made = [By::Go, By::Us].map(|by| {
            let (node, pod, result) = attached("one");
            let config = config("1.0.0", limits.clone(), Some(&result));
            let added =
                succeed(&node, &call(by, "ADD", &pod.attachment("eth0"), &config)).document().unwrap();
            let (veth, ifb) = (host_veth(&result), shared_name(&owner("one", "eth0")));
            let disciplines = [&veth, &ifb].map(|link| qdiscs(&node, link).to_string());
            let names: Vec<String> =
                added["interfaces"].as_array().unwrap().iter().map(|i| i["name"].to_string()).collect();
            let link = node
                .sh(&format!("ip -o -d link show {ifb} | grep -o 'mtu [0-9]*\\|qlen [0-9]*\\|ifb'"))
                .unwrap();
            let filter = filters(&node, &veth).lines().take(4).collect::<Vec<_>>().join("\n");
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
        let made = [By::Go, By::Us].map(|by| {
            let (node, pod, result) = attached("one");
            let mut config = config("1.0.0", both(rate, burst), Some(&result));
            config["referenceNumbers"] = json!(true);
            succeed(&node, &call(by, "ADD", &pod.attachment("eth0"), &config));
            [host_veth(&result), shared_name(&owner("one", "eth0"))]
                .map(|link| node.sh(&format!("tc -d qdisc show dev {link} | grep tbf")).unwrap())
        });
        assert_eq!(made[0], made[1], "{rate} {burst}");
    }
}

#[test]
fn state_of_the_reference_is_checked_adopted_and_removed() {
    for limits in [sound(), both(10_000_000, CONTAINERD), both(1_000_000, CRIO)] {
        let (node, pod, result) = attached("one");
        let attachment = pod.attachment("eth0");
        let before = snapshot(&node);
        let add = config("1.0.0", limits.clone(), Some(&result));
        let added = succeed(&node, &call(By::Go, "ADD", &attachment, &add)).document().unwrap();
        let then = config("1.0.0", limits.clone(), Some(&added));
        succeed(&node, &call(By::Us, "CHECK", &attachment, &then));
        // ADD adopts the reference's IFB and sets its alias.
        let again = succeed(&node, &call(By::Us, "ADD", &attachment, &add)).document().unwrap();
        assert_eq!(again["interfaces"], added["interfaces"]);
        assert_eq!(ifbs(&node).len(), 1);
        succeed(&node, &call(By::Us, "CHECK", &attachment, &then));
        succeed(&node, &call(By::Us, "DEL", &attachment, &then));
        assert_eq!(before.diff(&snapshot(&node)), "");
        // DEL removes the reference's IFB, with and without the namespace.
        for netns in [attachment.netns.clone(), String::new()] {
            succeed(&node, &call(By::Go, "ADD", &attachment, &add));
            let mut attachment = attachment.clone();
            attachment.netns = netns;
            succeed(&node, &call(By::Us, "DEL", &attachment, &config("1.0.0", json!(null), None)));
            assert_eq!(ifbs(&node), Vec::<String>::new());
            let veth = host_veth(&result);
            node.sh(&format!(
                "tc qdisc del dev {veth} root 2>&-; tc qdisc del dev {veth} ingress 2>&-; true"
            ))
            .unwrap();
        }
    }
}

#[test]
fn reference_checks_and_removes_our_state() {
    let (node, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let added = succeed(&node, &call(By::Us, "ADD", &attachment, &config("1.0.0", sound(), Some(&result))));
    let then = config("1.0.0", sound(), Some(&added.document().unwrap()));
    succeed(&node, &call(By::Go, "CHECK", &attachment, &then));
    succeed(&node, &call(By::Go, "DEL", &attachment, &then));
    assert_eq!(ifbs(&node), Vec::<String>::new());
    succeed(&node, &call(By::Us, "DEL", &attachment, &then));
    pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
}

/// The reference made the first interface, before the plugins were replaced. Ours makes the second.
#[test]
fn second_interface_beside_the_references_first() {
    let (node, pod, result) = attached("one");
    let bridge = Bins::new(By::Go, By::Us);
    let second = bridge.runtime(&node).add(&bridge_only("1.0.0"), &pod.attachment("net1")).unwrap();
    let before = snapshot(&node);
    let config_of = |result: &Value| config("1.0.0", both(10_000_000, CRIO), Some(result));
    succeed(&node, &call(By::Go, "ADD", &pod.attachment("eth0"), &config_of(&result)));
    let first_only = snapshot(&node);
    for _ in 0..2 {
        succeed(&node, &call(By::Us, "ADD", &pod.attachment("net1"), &config_of(&second)));
    }
    assert_eq!(ifbs(&node), [shared_name(&owner("one", "eth0")), own_name(&owner("one", "net1"))]);
    for _ in 0..2 {
        succeed(&node, &call(By::Us, "DEL", &pod.attachment("net1"), &config("1.0.0", json!(null), None)));
        assert_eq!(first_only.diff(&snapshot(&node)), "");
    }
    succeed(&node, &call(By::Us, "DEL", &pod.attachment("eth0"), &config("1.0.0", json!(null), None)));
    assert_eq!(before.diff(&snapshot(&node)), "");
}

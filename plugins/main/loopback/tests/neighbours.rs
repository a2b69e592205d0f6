//! Concurrent calls in one namespace, as containerd makes them, and calls that alternate with the Go plugin.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::thread;

use cni_lab::testing::{VERSIONS, is_up, succeed, succeed_silently};
use cni_lab::{Place as _, go_bin_dir};
use common::{LOOPBACK, call, call_with, config, node_and_pod};
use serde_json::json;

#[test]
fn fifty_concurrent_adds_beside_a_bridge() {
    let (node, pod) = node_and_pod();
    let go = go_bin_dir().unwrap();
    let bridge_config = json!({ "cniVersion": "1.0.0", "name": "pods", "type": "bridge", "bridge": "cni0",
        "isGateway": true, "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" } });
    let mut bridge = call_with("ADD", &pod, &bridge_config);
    bridge.binary = go.join("bridge");
    bridge.path = go.display().to_string();
    let result = thread::scope(|scope| {
        let bridge_add = scope.spawn(|| succeed(&node, &bridge));
        let all: Vec<_> = (0..50).map(|_| scope.spawn(|| succeed(&node, &call("ADD", &pod)))).collect();
        for one in all {
            assert_eq!(one.join().unwrap()["ips"].as_array().unwrap().len(), 2);
        }
        bridge_add.join().unwrap()
    });
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
    assert!(is_up(&pod, "lo"));
    pod.sh("ping -c 1 -W 5 10.1.0.1 && ping -c 1 -W 2 10.1.0.2 && ping -c 1 -W 2 ::1").unwrap();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| succeed_silently(&node, &call("DEL", &pod)));
        }
    });
    assert!(!is_up(&pod, "lo"));
    pod.sh("ip link show eth0").unwrap();
}

#[test]
fn alternating_with_the_go_plugin() {
    let (node, pod) = node_and_pod();
    let go = go_bin_dir().unwrap().join("loopback");
    // Debian's 1.1.1 does not support specification 1.1.0.
    for version in &VERSIONS[..6] {
        for (adder, deleter) in [(LOOPBACK.into(), go.clone()), (go.clone(), LOOPBACK.into())] {
            let mut add = call_with("ADD", &pod, &config(version));
            add.binary = adder;
            let result = succeed(&node, &add);
            assert!(is_up(&pod, "lo"));
            let mut chained = config(version);
            chained["prevResult"] = result;
            if *version >= "0.4.0" {
                for binary in [LOOPBACK.into(), go.clone()] {
                    let mut check = call_with("CHECK", &pod, &chained);
                    check.binary = binary;
                    succeed_silently(&node, &check);
                }
            }
            let mut del = call_with("DEL", &pod, &chained);
            del.binary = deleter;
            succeed_silently(&node, &del);
            assert!(!is_up(&pod, "lo"), "{version}");
        }
    }
}

/// ADD's result equals the Go plugin's. Versions below 1.0.0 whose layout the Go plugin gets wrong are not
/// compared.
#[test]
fn result_equals_the_go_plugins() {
    let (node, pod) = node_and_pod();
    for config in [config("1.0.0"), json!({ "name": "net" })] {
        let ours = succeed(&node, &call_with("ADD", &pod, &config));
        let mut theirs = call_with("ADD", &pod, &config);
        theirs.binary = go_bin_dir().unwrap().join("loopback");
        let mut theirs = succeed(&node, &theirs);
        if theirs["dns"] == json!({}) && config["cniVersion"] == "1.0.0" {
            theirs.as_object_mut().unwrap().remove("dns"); // printed by libraries before 1.2.0
        }
        assert_eq!(ours, theirs);
    }
}

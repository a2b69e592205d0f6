//! The container changes what ADD made, or keeps the plugin from its work. DEL must succeed, and change nothing outside of the
//! container.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fmt::Write as _;
use std::process::Command;

use cni_lab::testing::{assert_unchanged, link, ports, routes, try_link};
use cni_lab::{Place as _, TIMEOUT, eventually};
use common::{attached, config};
use serde_json::{Value, json};

/// A lock on the file of the namespace, which each process in it can open.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn a_lock_on_the_namespace_stops_no_call() {
    let (ctx, pod, _routers) = attached();
    let (one, conf) = (pod.attachment("net1"), config("1.1.0", "net1", &json!({"vrfname": "red"})));
    let mut flock = Command::new("flock");
    flock.args(["/proc/self/ns/net", "sleep", "1000"]);
    let _holder = pod.spawn(flock).unwrap();
    let is_held = || pod.sh("flock -n /proc/self/ns/net true").is_err();
    assert!(eventually(TIMEOUT, is_held), "no lock");
    ctx.add(&one, &conf);
    ctx.check(&one, &conf);
    ctx.del(&one, &conf);
    assert_eq!(try_link(&pod, "red"), None);
    assert!(is_held(), "the lock is gone");
}

/// The kernel makes one multipath route of two IPv6 routes to the same destination with the same metric, and leaves both next
/// hops where they are.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn only_next_hops_through_the_interface_enter_the_vrf() {
    let (ctx, pod, _routers) = attached();
    pod.sh("for net in net1 net2; do ip -6 route append fd0a::/64 via fd01::1 dev $net metric 60; done
            ip route add 10.10.0.0/16 metric 60 nexthop via 10.1.0.1 dev net1 nexthop via 10.1.0.1 dev net2")
        .unwrap();
    let devices = |arguments: &str| -> Vec<Value> {
        let devices = |route: &Value| {
            let single = [route.clone()];
            let hops = route["nexthops"].as_array().map_or(single.as_slice(), Vec::as_slice);
            hops.iter().map(|hop| hop["dev"].clone()).collect::<Vec<_>>()
        };
        routes(&pod, arguments).iter().flat_map(devices).collect()
    };
    assert_eq!(devices("-6 fd0a::/64"), ["net1", "net2"]);
    let (one, conf) =
        (pod.attachment("net1"), config("1.1.0", "net1", &json!({"vrfname": "red", "table": 77})));
    ctx.add(&one, &conf);
    ctx.check(&one, &conf);
    assert_eq!(devices("-6 table 77 fd0a::/64"), ["net1"]);
    assert_eq!(devices("table 77 10.10.0.0/16"), ["net1"]);
    assert_eq!(devices("-6 fd0a::/64"), ["net2"]);
    // A route of the same destination elsewhere.
    pod.sh("ip route del 10.9.0.0/16 table 77 && ip route add 10.9.0.0/16 via 10.1.0.1 dev net2 table 77")
        .unwrap();
    ctx.fail("CHECK", &one, &conf).expect(999, "route 10.9.0.0/16 not found in table 77 of vrf red");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn del_finds_a_renamed_interface_and_a_renamed_vrf() {
    let rename = |from: &str, to: &str| {
        format!("ip link set {from} down; ip link set {from} name {to}; ip link set {to} up")
    };
    let decoys = [
        rename("net1", "other"),
        format!(
            "{}; ip link add net1 type bridge; ip addr add 10.1.0.2/24 dev net1",
            rename("net1", "other")
        ),
        format!("{}; ip link add red type bridge", rename("red", "other")),
    ];
    for harm in decoys {
        let (ctx, pod, _routers) = attached();
        let (one, conf) = (pod.attachment("net1"), config("1.1.0", "net1", &json!({"vrfname": "red"})));
        let node = ctx.snapshot();
        ctx.add(&one, &conf);
        pod.sh(&harm).unwrap();
        ctx.del(&one, &conf);
        assert_eq!(pod.sh("ip -j link show type vrf").unwrap().trim(), "[]", "{harm}");
        let real = if try_link(&pod, "other").is_some() { "other" } else { "net1" };
        assert_eq!(link(&pod, real)["master"], Value::Null, "{harm}");
        ctx.del(&one, &conf);
        assert_unchanged(&ctx.node, &node, &harm);
    }
}

/// It stays, and its VRF does too.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn a_port_of_the_container_stays() {
    let (ctx, pod, _routers) = attached();
    let (one, conf) = (pod.attachment("net1"), config("1.1.0", "net1", &json!({"vrfname": "red"})));
    ctx.add(&one, &conf);
    pod.sh("ip link set net2 master red; ip link del net1; ip link add net1 type bridge").unwrap();
    pod.sh("ip addr flush dev net2").unwrap();
    ctx.del(&one, &conf);
    assert_eq!(ports(&pod, "red"), ["net2"]);
}

/// More requests than a socket takes at once.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn four_thousand_routes_enter_the_vrf() {
    let (ctx, pod, _routers) = attached();
    let (one, conf) = (pod.attachment("net1"), config("1.1.0", "net1", &json!({"vrfname": "red"})));
    let mut batch = String::new();
    for number in 0..4_000 {
        writeln!(batch, "route add 10.6.{}.{} via 10.1.0.9 dev net1", number / 250, number % 250).unwrap();
    }
    ctx.node.write_file("/run/batch", &batch).unwrap();
    pod.sh("ip -batch /run/batch").unwrap();
    ctx.add(&one, &conf);
    assert_eq!(pod.sh("ip route show vrf red | grep -c ^10.6").unwrap(), "4000\n");
    ctx.del(&one, &conf);
    assert_eq!(try_link(&pod, "red"), None);
}

//! Repair makes the VRF again, with the interface in it and the routes of the result.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{addresses, ports};
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use common::{attached, config};
use serde_json::json;

const REPAIR: &str = env!("CARGO_BIN_EXE_vrf-repair");

const DAMAGES: [&str; 5] = [
    "ip link del red",
    "ip link set net1 nomaster",
    "ip link set red down",
    "ip route del 10.9.0.0/16 table 77",
    "ip route del 10.9.0.0/16 table 77; ip route del 10.7.0.0/16 table 77; ip route del 10.1.0.0/24 table 77",
];

const BEFORE: &str = "ip link set net1 up; ip -6 addr replace fd01::2/64 dev net1 nodad
    ip route replace 10.9.0.0/16 metric 51 nexthop via 10.1.0.1 dev net1 nexthop via 10.1.0.9 dev net1 weight 2
    ip route replace 10.7.0.0/16 dev net1 metric 51";

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn damage_is_mended() {
    let (ctx, pod, _routers) = attached();
    let (net, conf) =
        (pod.attachment("net1"), config("1.1.0", "net1", &json!({"vrfname": "red", "table": 77})));
    let before = Snapshot::take(&pod).unwrap();
    for damage in DAMAGES {
        // DEL does not restore what the kernel removes with the master.
        pod.sh(BEFORE).unwrap();
        ctx.add(&net, &conf);
        ctx.check(&net, &conf);
        ctx.mend(REPAIR, &net, &conf, &pod, damage);
        assert_eq!(ports(&pod, "red"), ["net1"], "{damage}");
        let reaches = || pod.sh("ping -c 1 -W 1 -I red 10.9.0.1").is_ok();
        assert!(eventually(TIMEOUT, reaches), "{damage}");
        ctx.del(&net, &conf);
        assert!(addresses(&pod, "net1").contains(&"10.1.0.2/24".to_owned()), "{damage}");
    }
    pod.sh(BEFORE).unwrap();
    let of_net1 = ["net1", "10.9.0.0/16", "fd09::/64", "fd01::"];
    assert_eq!(before.ignoring(&of_net1).diff(&Snapshot::take(&pod).unwrap().ignoring(&of_net1)), "");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn another_master_stays() {
    let (ctx, pod, _routers) = attached();
    let (net, conf) =
        (pod.attachment("net1"), config("1.1.0", "net1", &json!({"vrfname": "red", "table": 77})));
    ctx.add(&net, &conf);
    pod.sh("ip link set net1 nomaster; ip link add blue type vrf table 78; ip link set net1 master blue")
        .unwrap();
    let error = ctx.repairing(REPAIR).fail("ADD", &net, &conf);
    assert!(error.contains("has already a master set: blue"), "{error}");
    assert_eq!(ports(&pod, "blue"), ["net1"]);
}

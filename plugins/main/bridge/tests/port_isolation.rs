//! `portIsolation`: two isolated pods do not reach each other, and all else does.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{host_local, link, with_prev};
use common::{config, ours};
use serde_json::json;

#[test]
fn isolated_pods_reach_the_node_and_other_pods_but_not_each_other() {
    let ctx = ours();
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    let conf = |is_isolated: bool| {
        config("1.0.0", &json!({"isGateway": true, "portIsolation": is_isolated, "ipam": ipam}))
    };
    let pods = ["one", "two", "free"].map(|name| ctx.pod(name));
    let [one, two, free] = &pods;
    let result = ctx.add(&one.attachment("eth0"), &conf(true));
    ctx.add(&two.attachment("eth0"), &conf(true));
    ctx.add(&free.attachment("eth0"), &conf(false));
    let ping = |from: &cni_lab::Pod, to: &str| from.sh(&format!("ping -c 1 -W 1 {to}")).is_ok();
    for prefix in ["10.1.0.", "fd00:1::"] {
        assert!(!ping(one, &format!("{prefix}3")), "{prefix}");
        assert!(ping(one, &format!("{prefix}4")) && ping(free, &format!("{prefix}3")), "{prefix}");
        assert!(ping(one, &format!("{prefix}1")), "{prefix}");
    }
    assert!(!ping(two, "10.1.0.2"));

    let check = with_prev(&conf(true), &result);
    ctx.check(&one.attachment("eth0"), &check);
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    assert_eq!(link(&ctx.node, port)["linkinfo"]["info_slave_data"]["isolated"], true);
    ctx.node.sh(&format!("bridge link set dev {port} isolated off")).unwrap();
    ctx.fail("CHECK", &one.attachment("eth0"), &check).expect(999, "is not isolated");
}

//! Modes, chaining, traffic, and what all plugins of one link share.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::Place as _;
use cni_lab::testing::link_plugin::{self, CHANGES, LAN, config};
use cni_lab::testing::{ips_of, link, mac, network_config, overlay, with_prev};
use cni_runner::Attachment;
use serde_json::json;

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn life_of_an_ipvlan() {
    cni_lab::kernel_module("ipvlan");
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_ipvlan"));
    link_plugin::uplink(&ctx);
    let conf = |keys| config("ipvlan", "1.1.0", &overlay(&json!({"master": "uplink0", "dad": "off"}), &keys));
    let (first, second) = (ctx.pod("first"), ctx.pod("second"));
    let ips = [&first, &second].map(|pod| ips_of(&ctx.add(&pod.attachment("eth0"), &conf(json!({})))));
    assert_eq!(mac(&first, "eth0"), mac(&ctx.node, "uplink0"));
    for ip in LAN.iter().map(ToString::to_string).chain(ips[1].clone()) {
        first.sh(&format!("ping -n -c 1 -w 30 {ip}")).unwrap();
    }
    for pod in [&first, &second] {
        ctx.del(&pod.attachment("eth0"), &conf(json!({})));
    }
    for (mode, flag) in [("l3", "private"), ("l3s", "vepa")] {
        let keys = conf(json!({"mode": mode, "flag": flag, "mtu": 1400}));
        let result = ctx.add(&first.attachment("eth0"), &keys);
        let (eth0, data) = (link(&first, "eth0"), json!({"mode": mode, "flags": [flag]}));
        assert_eq!((&eth0["mtu"], &eth0["linkinfo"]["info_data"]["mode"]), (&json!(1400), &data["mode"]));
        ctx.check(&first.attachment("eth0"), &with_prev(&keys, &result));
        let other = with_prev(&overlay(&keys, &json!({"flag": "bridge"})), &result);
        let text =
            format!("ipvlan \"eth0\" has mode {mode} {flag}, the configuration says mode {mode} bridge");
        ctx.fail("CHECK", &first.attachment("eth0"), &other).expect(999, &text);
        ctx.del(&first.attachment("eth0"), &keys);
    }
    link_plugin::check_notices(&ctx, &conf(json!({})), &CHANGES[2..3]);
    link_plugin::del_leaves_no_address(&ctx, &conf(json!({})), &conf(json!({})), false);
    link_plugin::takes_turns_with_the_reference(
        &ctx,
        "ipvlan",
        &overlay(&conf(json!({})), &json!({"cniVersion": "1.0.0"})),
    );
    ctx.succeed("STATUS", &Attachment::default(), &conf(json!({})));
}

/// The plugin before names the master and gives the addresses. DEL needs neither.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn chained() {
    cni_lab::kernel_module("ipvlan");
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_ipvlan"));
    link_plugin::uplink(&ctx);
    let pod = ctx.pod("pod1");
    let former = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "uplink0"}],
        "ips": [{"address": "10.1.2.9/24", "interface": 0}], "routes": [{"dst": "10.9.0.0/16", "gw": "10.1.2.1"}]});
    let conf = network_config("ipvlan", "1.0.0", &json!({}));
    let result = ctx.add(&pod.attachment("eth0"), &with_prev(&conf, &former));
    let interface = json!([{"name": "eth0", "mac": mac(&pod, "eth0"), "sandbox": pod.path()}]);
    assert_eq!(
        (&result["interfaces"], &result["ips"], &result["routes"]),
        (&interface, &former["ips"], &former["routes"])
    );
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    ctx.del(&pod.attachment("eth0"), &with_prev(&conf, &result));
    let several = overlay(&former, &json!({"interfaces": [{"name": "a"}, {"name": "b"}]}));
    let error = ctx.fail("ADD", &pod.attachment("eth0"), &with_prev(&conf, &several));
    error.expect(7, "chained master failure. PrevResult lacks a single named interface");
}

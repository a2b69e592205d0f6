//! What only the tests of tuning need.
#![allow(dead_code)] // each test program uses a part

use cni_lab::testing::{Origin, PluginDir, TestContext, link, network_config, overlay};
use cni_lab::{Place as _, Pod};
use cni_runner::Attachment;
use serde_json::{Value, json};

/// The backup file of `attachment("pod1")`.
pub(crate) const BACKUP: &str = "/run/cni/tuning/pod1_eth0.json";

/// A node with our plugin, and a pod `pod1` whose `eth0` is a veth with the other end `host0` on the node.
pub(crate) fn attached() -> (TestContext, Pod) {
    let ctx = TestContext::new(PluginDir::new(env!("CARGO_BIN_EXE_tuning"), Origin::Ours));
    let pod = veth(&ctx, "pod1", "host0");
    (ctx, pod)
}

/// A pod with a veth `eth0`.
pub(crate) fn veth(ctx: &TestContext, name: &str, host: &str) -> Pod {
    let pod = ctx.pod(name);
    let make = "type veth peer name eth0 address 02:00:00:00:00:01 mtu 1500 netns";
    ctx.node.sh(&format!("ip link add {host} up mtu 1500 {make} {name}")).unwrap();
    pod.sh("ip link set eth0 up").unwrap();
    pod
}

/// The plugin's configuration behind a plugin that made the veth of [`attached`].
pub(crate) fn config(version: &str, keys: &Value) -> Value {
    let mut interfaces = json!([{"name": "host0", "mac": "02:00:00:00:00:02"},
        {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/pod1"}]);
    if version == "1.1.0" {
        (interfaces[0]["mtu"], interfaces[1]["mtu"]) = (json!(1500), json!(1500));
    }
    let result = json!({"cniVersion": version, "interfaces": interfaces});
    network_config("tuning", version, &overlay(&json!({"prevResult": result}), keys))
}

/// The pod's `eth0`.
pub(crate) fn eth0(pod: &Pod) -> Attachment {
    pod.attachment("eth0")
}

/// MAC address, MTU, transmit queue length, and the flags PROMISC and ALLMULTI of the pod's `eth0`.
pub(crate) fn state(pod: &Pod) -> (String, u64, u64, bool, bool) {
    let link = link(pod, "eth0");
    let details = pod.sh("ip -d link show eth0").unwrap();
    let number = |key: &str| link[key].as_u64().unwrap();
    let is_on = |flag: &str| details.split(['<', '>']).nth(1).unwrap().split(',').any(|one| one == flag);
    let mac = link["address"].as_str().unwrap().to_owned();
    (mac, number("mtu"), number("txqlen"), is_on("PROMISC"), is_on("ALLMULTI"))
}

/// Whether the pod's `eth0` uses the offload feature, as `ethtool` reports it.
pub(crate) fn has_feature(pod: &Pod, name: &str) -> bool {
    let features = pod.sh("ethtool -k eth0").unwrap();
    let line = features.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: "))).unwrap();
    line.starts_with("on")
}

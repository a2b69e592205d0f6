//! What only the tests of sbr need.
#![allow(dead_code)] // each test program uses a part

use cni_lab::testing::{Origin, PluginDir, TestContext, network_config, overlay};
use cni_lab::{Place, Pod, TIMEOUT, eventually};
use serde_json::{Value, json};

/// A node with our plugin, and a pod with a default route through `eth0` and a second interface `net1`.
pub(crate) fn attached() -> (TestContext, Pod) {
    let ctx = TestContext::new(PluginDir::new(env!("CARGO_BIN_EXE_sbr"), Origin::Ours));
    let pod = ctx.pod("pod1");
    link(&ctx, &pod, "eth0", "host0");
    pod.sh("ip addr add 10.0.0.2/24 dev eth0 && ip -6 addr add fd00::2/64 dev eth0 nodad").unwrap();
    pod.sh("ip route add default via 10.0.0.1 && ip -6 route add default via fd00::1").unwrap();
    net1(&ctx, &pod);
    (ctx, pod)
}

pub(crate) fn link(ctx: &TestContext, pod: &Pod, name: &str, host: &str) {
    let make = format!("ip link add {host} up type veth peer name {name} netns {}", pod.name());
    ctx.node.sh(&make).unwrap();
    pod.sh(&format!("ip link set {name} up")).unwrap();
}

/// Makes `net1` with two families, and routes to networks behind it: one with two next hops, one without any.
pub(crate) fn net1(ctx: &TestContext, pod: &Pod) {
    link(ctx, pod, "net1", "host1");
    pod.sh("ip addr add 10.1.0.2/24 dev net1 && ip -6 addr add fd01::2/64 dev net1 nodad
         ip route add 10.8.0.0/16 nexthop via 10.1.0.1 dev net1 nexthop via 10.1.0.9 dev net1
         ip route add 10.9.0.0/16 dev net1 metric 7
         ip -6 route add fd08::/64 via fd01::9 dev net1")
        .unwrap();
    // The kernel adds it from a work queue.
    let is_local = || pod.sh("ip -6 route show table local fd01::2 | grep -q .").is_ok();
    assert!(eventually(TIMEOUT, is_local), "fd01::2 is not local");
}

/// The configuration of sbr behind a plugin that made `net1`.
pub(crate) fn config(version: &str, keys: &Value) -> Value {
    let mut ips = json!([{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1},
        {"address": "fd01::2/64", "gateway": "fd01::1", "interface": 1}]);
    if version < "1.0.0" {
        (ips[0]["version"], ips[1]["version"]) = (json!("4"), json!("6"));
    }
    let interfaces = json!([{"name": "net1"}, {"name": "net1", "sandbox": "/run/netns/pod1"}]);
    let result = json!({"cniVersion": version, "interfaces": interfaces, "ips": ips});
    network_config("sbr", version, &overlay(&json!({"prevResult": result}), keys))
}

/// The rules for single sources, as `SOURCE TABLE`.
pub(crate) fn rules(pod: &Pod) -> Vec<String> {
    let list = |family| {
        pod.sh(&format!("ip {family} rule show | awk '$2 == \"from\" && $3 != \"all\" {{print $3, $5}}'"))
    };
    ["-4", "-6"]
        .iter()
        .flat_map(|family| list(family).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// The destinations of a table, of both families, without link-local and multicast ones.
pub(crate) fn destinations(place: &impl Place, table: &str) -> Vec<String> {
    // A table without a route may be an error.
    let of =
        |family| format!("ip {family} route show table {table} 2>/dev/null | awk '/^[^ \\t]/ {{print $1}}'");
    let all = place.sh(&format!("{}; {}", of("-4"), of("-6"))).unwrap();
    all.lines()
        .filter(|dst| !dst.starts_with("fe80:") && !dst.starts_with("ff00:"))
        .map(str::to_owned)
        .collect()
}

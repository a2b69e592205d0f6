//! What only the tests of vrf need.
#![allow(dead_code)] // each test program uses a part

use cni_lab::testing::{Origin, PluginDir, TestContext, network_config, overlay};
use cni_lab::{Place as _, Pod, kernel_module};
use serde_json::{Value, json};

/// A node with our plugin, and a pod with `net1` and `net2`, which have the same addresses and lead to other namespaces
/// with the same addresses, but one of their own.
pub(crate) fn attached() -> (TestContext, Pod, [Pod; 2]) {
    kernel_module("vrf");
    let ctx = TestContext::new(PluginDir::new(env!("CARGO_BIN_EXE_vrf"), Origin::Ours));
    let (pod, routers) = (ctx.pod("pod1"), [ctx.pod("one"), ctx.pod("two")]);
    // The first VRF of a namespace adds rules that stay.
    pod.sh("ip link set lo up && ip link add first type vrf table 7 && ip link del first").unwrap();
    for (number, router) in ["1", "2"].iter().zip(&routers) {
        let own =
            format!("ip addr add 10.9.0.{number}/32 dev lo && ip -6 addr add fd09::{number}/128 dev lo");
        router.sh(&format!("ip link set lo up && {own}")).unwrap();
        net(&pod, router, number);
    }
    (ctx, pod, routers)
}

/// Makes `net1` or `net2`, and routes behind it: with two next hops, and without any.
pub(crate) fn net(pod: &Pod, router: &Pod, number: &str) {
    let name = router.name();
    pod.sh(&format!(
        "ip link add net{number} type veth peer name back netns /run/netns/{name}
         sysctl -qw net.ipv6.conf.net{number}.accept_dad=0
         ip addr add 10.1.0.2/24 dev net{number} && ip -6 addr add fd01::2/64 dev net{number} nodad
         ip link set net{number} up"
    ))
    .unwrap();
    router
        .sh("for host in 1 9; do
                 ip addr add 10.1.0.$host/24 dev back && ip -6 addr add fd01::$host/64 dev back nodad
             done; ip link set back up")
        .unwrap();
    pod.sh(&format!(
        "ip route add 10.9.0.0/16 metric 5{number} nexthop via 10.1.0.1 dev net{number} nexthop via 10.1.0.9 dev net{number} weight 2
         ip -6 route add fd09::/64 metric 5{number} nexthop via fd01::1 dev net{number} nexthop via fd01::9 dev net{number}
         ip route add 10.7.0.0/16 dev net{number} metric 5{number}"
    ))
    .unwrap();
}

/// The configuration of vrf behind a plugin that made this interface.
pub(crate) fn config(version: &str, ifname: &str, keys: &Value) -> Value {
    let mut ips =
        json!([{"address": "10.1.0.2/24", "interface": 0}, {"address": "fd01::2/64", "interface": 0}]);
    if version < "1.0.0" {
        (ips[0]["version"], ips[1]["version"]) = (json!("4"), json!("6"));
    }
    let interfaces = json!([{"name": ifname, "sandbox": "/run/netns/pod1"}]);
    let routes = json!([{"dst": "10.9.0.0/16", "gw": "10.1.0.1"}]);
    let result = json!({"cniVersion": version, "interfaces": interfaces, "ips": ips, "routes": routes});
    network_config("vrf", version, &overlay(&json!({"prevResult": result}), keys))
}

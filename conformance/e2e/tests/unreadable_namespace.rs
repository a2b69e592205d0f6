//! DEL cannot look at the container's namespace, and the runtime calls it again. The first one must not take the namespace for
//! gone: it fails, and keeps what the second one restores.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::{Expect as _, fail, host_local, ips_of, succeed};
use cni_lab::{Node, Place as _, Snapshot, TIMEOUT, bin_dir, eventually};
use cni_runner::{Exec, Extra, Network, plugin_input};
use serde_json::{Value, json};

/// The state that host-local changes with every address, the numbers of the kernel, and its rules for VRFs, which it keeps.
const STAY: [&str; 3] = ["last_reserved_ip.", "ingress: index ", "L3MDev("];

/// Runs ADD of each plugin, and DEL of each one, the last first, each at first with a path that the kernel cannot look up.
fn del_twice(prepare: &str, plugins: &Value) {
    let node = Node::new().unwrap();
    node.sh(prepare).unwrap();
    let list = json!({"name": "net", "cniVersion": "1.1.0", "plugins": plugins});
    let network = Network::from_value(&list).unwrap();
    let pod = |name: &str| {
        let pod = node.pod(name).unwrap();
        let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let attachment = pod.attachment("eth0").with_capability("portMappings", ports);
        (pod, attachment)
    };
    // The first pod makes what all share.
    let runtime = node.runtime([bin_dir().unwrap()]);
    let (first, attachment) = pod("first");
    runtime.add(&network, &attachment).unwrap();
    runtime.del(&network, &attachment).unwrap();
    first.delete().unwrap();

    let (pod, attachment) = pod("pod");
    // The kernel keeps the address of lo after that.
    pod.sh("ip link set lo up && ip link set lo down").unwrap();
    let call = |verb, plugin: usize, previous: Option<&Value>| {
        let extra = Extra::Attachment(&attachment, previous);
        let input = plugin_input(&network, &network.plugins[plugin], extra);
        let program = bin_dir().unwrap().join(plugins[plugin]["type"].as_str().unwrap());
        Exec::new(program, verb).attachment(&attachment).stdin(input)
    };
    let look = || [Snapshot::take(&node), Snapshot::take(&pod)].map(|one| one.unwrap().ignoring(&STAY));
    let mut result = None;
    let mut before = Vec::new();
    for plugin in 0..network.plugins.len() {
        before.push(look());
        result = Some(succeed(&node, &call("ADD", plugin, result.as_ref())));
    }
    let result = result.unwrap();
    for (plugin, before) in before.iter().enumerate().rev() {
        let what = &plugins[plugin]["type"];
        let del = call("DEL", plugin, Some(&result));
        let netns = format!("{}{}", attachment.netns, "x".repeat(5000));
        let error = fail(&node, &Exec { netns, ..del.clone() }, 999);
        assert!(error.msg.contains("failed to open netns"), "{what}: {error}");
        // No other pod may get an address that the interface still has.
        for ip in ips_of(&result).iter().filter(|_| plugins[0].get("ipam").is_some()) {
            let has = pod.sh(&format!("ip -o address show to {ip}")).unwrap();
            let is_reserved = node.sh(&format!("test -e /var/lib/cni/networks/net/{ip}")).is_ok();
            assert!(has.is_empty() || is_reserved, "{what}: {ip} is free");
        }
        node.call(&del).unwrap().ok();
        let diff = || [0, 1].map(|place| before[place].diff(&look()[place])).join("pod:\n");
        // The kernel configures an IPv6 address again that has left a VRF.
        eventually(TIMEOUT, || diff() == "pod:\n");
        assert_eq!(diff(), "pod:\n", "{what}");
    }
}

fn ipam() -> Value {
    host_local(&["10.1.2.0/24", "fd00:1::/64"])
}

const UPLINK: &str =
    "ip link add uplink0 type veth peer name lan0 && ip link set uplink0 up && ip link set lan0 up";

#[test]
fn bridge_with_all_chained_plugins() {
    let plugins = json!([
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "macspoofchk": true, "ipam": ipam()},
        {"type": "tuning", "mtu": 1400, "promisc": true, "mac": "02:00:00:00:00:17"},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "ingressRate": 100_000_000, "ingressBurst": 10_000_000,
            "egressRate": 100_000_000, "egressBurst": 10_000_000},
        {"type": "firewall", "backend": "nftables"}]);
    del_twice("true", &plugins);
}

#[test]
fn plugins_of_one_link() {
    del_twice("true", &json!([{"type": "loopback"}]));
    let behind = |main: Value| json!([main, {"type": "tuning", "mtu": 1400}, {"type": "sbr"}]);
    del_twice("true", &behind(json!({"type": "ptp", "ipMasq": true, "ipam": ipam()})));
    del_twice(UPLINK, &behind(json!({"type": "macvlan", "master": "uplink0", "ipam": ipam()})));
    del_twice("true", &behind(json!({"type": "tap", "ipam": ipam()})));
    let device = "ip link add nic0 type veth peer name far0 && ip address add 192.0.2.7/24 dev nic0";
    del_twice(device, &behind(json!({"type": "host-device", "device": "nic0", "ipam": ipam()})));
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn plugins_of_other_kinds_of_link() {
    ["ipvlan", "dummy", "8021q", "vrf"].into_iter().for_each(cni_lab::kernel_module);
    let behind = |main: Value| json!([main, {"type": "vrf", "vrfname": "red"}]);
    del_twice(UPLINK, &behind(json!({"type": "ipvlan", "master": "uplink0", "ipam": ipam()})));
    del_twice(UPLINK, &behind(json!({"type": "vlan", "master": "uplink0", "vlanId": 5, "ipam": ipam()})));
    del_twice("true", &behind(json!({"type": "dummy", "ipam": ipam()})));
}

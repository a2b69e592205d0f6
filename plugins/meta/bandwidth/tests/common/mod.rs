//! What only the tests of bandwidth need.
#![allow(dead_code)] // each test program uses a part

use cni_lab::testing::{Origin, PluginDir, TestContext, overlay, with_prev};
use cni_lab::{Place as _, Pod, Snapshot};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

/// The network's name.
pub(crate) const NETWORK: &str = "pods";

/// The bursts in bits that runtimes send if they have none.
pub(crate) const CONTAINERD: u64 = 4_294_967_295;
pub(crate) const CRIO: u64 = 34_359_738_359;
pub(crate) const KUBELET: u64 = 2_147_483_647;

/// The bandwidth plugin, and bridge and host-local of one implementation.
pub(crate) fn plugins(bridge: Origin, bandwidth: Origin) -> PluginDir {
    PluginDir::new(env!("CARGO_BIN_EXE_bandwidth"), bandwidth).with(bridge, &["bridge", "host-local"])
}

/// A node with our bandwidth plugin.
pub(crate) fn context(bridge: Origin) -> TestContext {
    TestContext::new(plugins(bridge, Origin::Ours))
}

/// The same node with the reference's bandwidth plugin.
pub(crate) fn reference(ctx: &TestContext) -> TestContext {
    ctx.with_plugins(plugins(Origin::Reference, Origin::Reference))
}

/// A network of a bridge with addresses and the bandwidth plugin with these keys.
pub(crate) fn network(version: &str, keys: Value) -> Network {
    let bandwidth = overlay(&json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}), &keys);
    let bridge = json!({"type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}});
    let list = json!({"name": NETWORK, "cniVersion": version, "plugins": [bridge, bandwidth]});
    Network::from_value(&list).unwrap()
}

/// [`network`] without the bandwidth plugin.
pub(crate) fn bridge_only(version: &str) -> Network {
    let mut network = network(version, json!({}));
    network.plugins.truncate(1);
    network
}

/// Limits as containerd sends them: (rate in bit/s, burst in bits) for each direction. A rate of 0 is no
/// limit.
pub(crate) fn limits(ingress: (u64, u64), egress: (u64, u64)) -> Value {
    json!({"IngressRate": ingress.0, "IngressBurst": ingress.1, "EgressRate": egress.0, "EgressBurst": egress.1})
}

pub(crate) fn both(rate: u64, burst: u64) -> Value {
    limits((rate, burst), (rate, burst))
}

/// The pod's attachment, with these limits in its capabilities.
pub(crate) fn shaped(pod: &Pod, ifname: &str, limits: Value) -> Attachment {
    pod.attachment(ifname).with_capability("bandwidth", limits)
}

/// The bandwidth plugin's configuration without a chain, with an optional prevResult.
pub(crate) fn config(version: &str, limits: Value, previous: Option<&Value>) -> Value {
    let config = json!({"cniVersion": version, "name": NETWORK, "type": "bandwidth", "runtimeConfig": {"bandwidth": limits}});
    previous.map_or(config.clone(), |previous| with_prev(&config, previous))
}

/// The name of the host's veth in a result.
pub(crate) fn host_veth(result: &Value) -> String {
    let interfaces = result["interfaces"].as_array().unwrap();
    let on_host = interfaces.iter().filter(|i| i.get("sandbox").is_none_or(|s| s == ""));
    let names = on_host.map(|i| i["name"].as_str().unwrap());
    names.filter(|name| name.starts_with("veth")).map(str::to_owned).next().unwrap()
}

pub(crate) fn owner<'a>(container_id: &'a str, ifname: &'a str) -> cni_common::plugin::Attachment<'a> {
    cni_common::plugin::Attachment { network: NETWORK, container_id, ifname }
}

/// The names of the node's IFBs.
pub(crate) fn ifbs(ctx: &TestContext) -> Vec<String> {
    let links = ctx.node.sh("ip -o link show type ifb").unwrap();
    links.lines().map(|line| line.split(": ").nth(1).unwrap().to_owned()).collect()
}

/// The link's qdiscs, as `tc -j` prints them.
pub(crate) fn qdiscs(ctx: &TestContext, link: &str) -> Value {
    serde_json::from_str(&ctx.node.sh(&format!("tc -j qdisc show dev {link}")).unwrap()).unwrap()
}

/// The link's ingress filters, as `tc` prints them.
pub(crate) fn filters(ctx: &TestContext, link: &str) -> String {
    ctx.node.sh(&format!("tc filter show dev {link} ingress")).unwrap()
}

/// Snapshot lines that bridge and host-local leave on purpose, and the action's index, which the kernel
/// chooses.
const STAY: [&str; 7] =
    ["cni0", "ip_forward", "-save nat", "nft ", "/var/lib/cni", "/run/cni", "ingress: index "];

/// A snapshot of the node without [`STAY`].
pub(crate) fn snapshot(ctx: &TestContext) -> Snapshot {
    ctx.snapshot().ignoring(&STAY)
}

/// A node with a container behind the reference's bridge, and the bridge's result.
pub(crate) fn attached(name: &str) -> (TestContext, Pod, Value) {
    let ctx = context(Origin::Reference);
    let pod = ctx.pod(name);
    let result = add_bridge(&ctx, &pod, "eth0");
    (ctx, pod, result)
}

/// Attaches a container to the bridge without the bandwidth plugin.
pub(crate) fn add_bridge(ctx: &TestContext, pod: &Pod, ifname: &str) -> Value {
    ctx.runtime().add(&bridge_only("1.0.0"), &pod.attachment(ifname)).unwrap()
}

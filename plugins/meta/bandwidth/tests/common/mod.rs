//! A test node with containers behind a bridge, and a bandwidth plugin; each of the two is ours or the
//! reference's.
#![allow(dead_code)] // each test program uses a part

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_lab::{Node, NodeRuntime, Place, Pod, Snapshot, bin_dir, go_bin_dir};
use cni_runner::{Attachment, Exec, Network, Output};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The plugin under test.
pub(crate) const BANDWIDTH: &str = env!("CARGO_BIN_EXE_bandwidth");

/// The network's name.
pub(crate) const NETWORK: &str = "pods";

/// The bursts in bits that runtimes send if they have none.
pub(crate) const CONTAINERD: u64 = 4_294_967_295;
pub(crate) const CRIO: u64 = 34_359_738_359;
pub(crate) const KUBELET: u64 = 2_147_483_647;

/// Which implementation of a plugin: ours or the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Us,
    Go,
}

/// A directory with bridge, host-local of the same implementation, and bandwidth.
pub(crate) struct Bins(TempDir);

impl Bins {
    pub(crate) fn new(bridge: By, bandwidth: By) -> Bins {
        let dir = tempfile::tempdir().unwrap();
        let from = match bridge {
            By::Us => bin_dir().unwrap(),
            By::Go => go_bin_dir().unwrap(),
        };
        for name in ["bridge", "host-local"] {
            symlink(from.join(name), dir.path().join(name)).unwrap();
        }
        symlink(binary(bandwidth), dir.path().join("bandwidth")).unwrap();
        Bins(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn runtime<'n>(&self, node: &'n Node) -> NodeRuntime<'n> {
        node.runtime([self.path()])
    }
}

pub(crate) fn binary(bandwidth: By) -> PathBuf {
    match bandwidth {
        By::Us => PathBuf::from(BANDWIDTH),
        By::Go => go_bin_dir().unwrap().join("bandwidth"),
    }
}

/// A network of a bridge with addresses and the bandwidth plugin with these keys.
pub(crate) fn network(version: &str, keys: Value) -> Network {
    let mut bandwidth = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    bandwidth.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
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
    let mut config = json!({"cniVersion": version, "name": NETWORK, "type": "bandwidth", "runtimeConfig": {"bandwidth": limits}});
    if let Some(previous) = previous {
        config["prevResult"] = previous.clone();
    }
    config
}

/// A call of one bandwidth plugin without its chain.
pub(crate) fn call(by: By, verb: &str, attachment: &Attachment, config: &Value) -> Exec {
    Exec::new(binary(by), verb)
        .attachment(attachment)
        .stdin(config.to_string())
        .timeout(Duration::from_secs(20))
}

pub(crate) fn succeed(place: &impl Place, exec: &Exec) -> Output {
    let output = place.call(exec).unwrap();
    assert!(output.success(), "{}{}", output.stdout_text(), output.stderr_text());
    output
}

/// Makes a call that must fail. Returns the error's message and details.
pub(crate) fn fail(place: &impl Place, exec: &Exec) -> String {
    let output = place.call(exec).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}{}", output.stdout_text(), output.stderr_text());
    let error = output.document().unwrap();
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    format!("{}; {}", text("msg"), text("details"))
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
pub(crate) fn ifbs(node: &Node) -> Vec<String> {
    let links = node.sh("ip -o link show type ifb").unwrap();
    links.lines().map(|line| line.split(": ").nth(1).unwrap().to_owned()).collect()
}

/// The link's qdiscs, as `tc -j` prints them.
pub(crate) fn qdiscs(node: &Node, link: &str) -> Value {
    serde_json::from_str(&node.sh(&format!("tc -j qdisc show dev {link}")).unwrap()).unwrap()
}

/// The link's ingress filters, as `tc` prints them.
pub(crate) fn filters(node: &Node, link: &str) -> String {
    node.sh(&format!("tc filter show dev {link} ingress")).unwrap()
}

/// Snapshot lines that bridge and host-local leave on purpose, and the action's index, which the kernel
/// chooses.
const STAY: [&str; 7] =
    ["cni0", "ip_forward", "-save nat", "nft ", "/var/lib/cni", "/run/cni", "ingress: index "];

/// A snapshot of the node without [`STAY`].
pub(crate) fn snapshot(node: &Node) -> Snapshot {
    Snapshot::take(node).unwrap().ignoring(&STAY)
}

/// A node with a container behind the reference's bridge, and the bridge's result.
pub(crate) fn attached(name: &str) -> (Node, Pod, Value) {
    let node = Node::new().unwrap();
    let pod = node.pod(name).unwrap();
    let bins = Bins::new(By::Go, By::Us);
    let result = bins.runtime(&node).add(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
    (node, pod, result)
}

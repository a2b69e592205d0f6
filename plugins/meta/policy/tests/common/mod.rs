//! A test node with pods of `ptp` behind `policy`, and clients outside.
#![allow(dead_code)] // each test program uses a part

use cni_lab::testing::{self, Origin, PluginDir};
use cni_lab::{Place as _, Pod};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

pub(crate) const POLICY: &str = env!("CARGO_BIN_EXE_policy");
pub(crate) const REPAIR: &str = env!("CARGO_BIN_EXE_policy-repair");
/// The addresses of each pod: the ranges have no others.
pub(crate) const ADDRESSES: [&str; 2] = ["10.1.0.2", "fd00:1::2"];

/// A node whose file isolates the namespaces `shop` in both directions, and `tools` for ingress.
pub(crate) fn world() -> testing::World {
    let plugins =
        PluginDir::new(POLICY, Origin::Ours).with(Origin::Ours, &["ptp", "host-local", "bridge", "macvlan"]);
    let world = testing::World::new(plugins);
    isolate(&world, "ferrule-policy 1\nshop both\ntools ingress\nend\n");
    world
}

pub(crate) fn isolate(world: &testing::World, text: &str) {
    world.node.write_file("/var/lib/ferrule/policy/isolated", text).unwrap();
}

/// A network of `ptp` with one address of each family, and these plugins behind it.
pub(crate) fn network(chained: &[Value]) -> Network {
    let range =
        |subnet: &str, address: &str| json!([{"subnet": subnet, "rangeStart": address, "rangeEnd": address}]);
    let ptp = json!({"type": "ptp", "ipam": {"type": "host-local",
        "ranges": [range("10.1.0.0/24", ADDRESSES[0]), range("fd00:1::/64", ADDRESSES[1])],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}});
    let plugins = [&[ptp], chained].concat();
    Network::from_value(&json!({"name": "pods", "cniVersion": "1.1.0", "plugins": plugins})).unwrap()
}

pub(crate) fn args(namespace: &str, uid: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=web;K8S_POD_UID={uid}")
}

/// An attachment of a pod of Kubernetes.
pub(crate) fn attachment(pod: &Pod, namespace: &str) -> Attachment {
    pod.attachment("eth0").with_args(args(namespace, pod.name()))
}

/// The elements of all sets, as `SET KEY COMMENT`, in their order.
pub(crate) fn announced(world: &testing::World) -> Vec<String> {
    let mut all = Vec::new();
    let listed = world
        .node
        .sh("nft -j list table inet ferrule_pods 2>/dev/null || echo '{\"nftables\": []}'")
        .unwrap();
    let document: Value = serde_json::from_str(&listed).unwrap();
    for set in document["nftables"].as_array().unwrap().iter().filter_map(|one| one.get("set")) {
        for element in set.get("elem").into_iter().flat_map(|list| list.as_array().unwrap()) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (key, comment) = (text(&element["elem"]["val"]), text(&element["elem"]["comment"]));
            let key = if set["name"] == "links" { "veth".to_owned() } else { key };
            all.push(format!("{} {key} {comment}", text(&set["name"])));
        }
    }
    all.sort();
    all
}

/// The elements of both directions for this pod.
pub(crate) fn both(comment: &str) -> Vec<String> {
    let [v4, v6] = ADDRESSES;
    [("egress4", v4), ("egress6", v6), ("ingress4", v4), ("ingress6", v6), ("links", "veth")]
        .map(|(set, key)| format!("{set} {key} {comment}"))
        .into()
}

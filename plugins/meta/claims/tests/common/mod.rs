//! A node with a kubelet, a driver and claims.
#![allow(dead_code)] // each test program uses a part

use cni_lab::testing::{Origin, PluginDir, TestContext, dra_manager_state, mac, network_config, overlay};
use cni_lab::{Place as _, Pod, Snapshot, TIMEOUT, eventually};
use cni_runner::Attachment;
use serde_json::{Value, json};

pub(crate) const DATA: &str = "/run/ferrule";
pub(crate) const ATTACHED: &str = "/run/ferrule/dra-attached";
const KUBELET: &str = "/run/kubelet";
/// The state files of host-device.
pub(crate) const RECORDS: &str = "/run/cni/host-device";
pub(crate) const UID: &str = "0d3c1f2a-7d0b-4e21-8599-62581e335ed6";
/// The plugins that a claim may name, and their IPAM plugins.
const PLUGINS: [&str; 10] =
    ["host-device", "static", "host-local", "macvlan", "ipvlan", "vlan", "tuning", "sbr", "vrf", "loopback"];

/// A node with the device `hd0`, which is up and has addresses, with all plugins in one program, and with a kubelet that has no claims.
pub(crate) fn claims_node() -> TestContext {
    let ctx = TestContext::new(PluginDir::installed(Origin::Ours, "claims").with(Origin::Ours, &PLUGINS));
    ctx.node
        .sh("ip link add hd0 type veth peer name hd1; ip link set hd1 up; ip link set hd0 up
             ip address add 10.9.0.1/24 dev hd0
             mkdir -p /run/kubelet /run/cni/host-device /run/cni/tuning /run/ferrule/dra-attached")
        .unwrap();
    kubelet_has(&ctx, &[]);
    ctx
}

/// The configuration of claims, chained after a plugin that has made the pod's `eth0`.
pub(crate) fn chained(pod: &Pod, keys: &Value) -> Value {
    let own = json!({"dataDir": DATA, "kubeletDir": KUBELET, "prevResult": eth0(pod)});
    overlay(&network_config("claims", "1.1.0", &own), keys)
}

pub(crate) fn eth0(pod: &Pod) -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:10", "sandbox": pod.path()}],
        "ips": [{"address": "10.244.0.2/24", "interface": 0}]})
}

/// The first interface of the pod with the UID [`UID`].
pub(crate) fn attachment(pod: &Pod) -> Attachment {
    of_uid(pod, UID)
}

pub(crate) fn of_uid(pod: &Pod, uid: &str) -> Attachment {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID={uid}");
    pod.attachment("eth0").with_args(args)
}

/// The device of a record. `keys` are the parameters of the claim.
pub(crate) fn device(ctx: &TestContext, link: &str, keys: &Value) -> Value {
    let link = json!({"name": link, "mac": mac(&ctx.node, link)});
    overlay(&json!({"request": "nic", "pool": "node1", "device": link["name"], "link": link}), keys)
}

/// Prepares a claim as the driver and the kubelet do: the kubelet's state, then the record.
pub(crate) fn prepare(ctx: &TestContext, claim: &str, devices: &[Value]) {
    kubelet_has(ctx, &[(claim, UID)]);
    write_record(ctx, claim, devices);
}

/// The record of a claim, whose UID is the hexadecimal `claim`.
pub(crate) fn write_record(ctx: &TestContext, claim: &str, devices: &[Value]) {
    let record = json!({"version": 1, "driver": "nic.ferrule.dev",
        "claim": {"namespace": "shop", "name": format!("nic-{claim}"), "uid": claim},
        "pod": {"uid": UID, "name": "web"}, "devices": devices});
    ctx.node.sh(&format!("mkdir -p {DATA}/dra/{UID}")).unwrap();
    ctx.node.write_file(format!("{DATA}/dra/{UID}/{claim}.json"), &record.to_string()).unwrap();
}

/// The kubelet's state: claims of our driver by UID, each with the UID of its pod.
pub(crate) fn kubelet_has(ctx: &TestContext, claims: &[(&str, &str)]) {
    ctx.node.write_file(format!("{KUBELET}/dra_manager_state"), &dra_manager_state(claims)).unwrap();
}

pub(crate) fn attached(ctx: &TestContext) -> Vec<String> {
    ctx.node.list_dir(ATTACHED).unwrap()
}

/// Panics if the node differs from the snapshot. The kernel adds some routes of IPv6 some time after the link is up.
pub(crate) fn assert_as(before: &Snapshot, ctx: &TestContext, what: &str) {
    eventually(TIMEOUT, || before.diff(&ctx.snapshot()).is_empty());
    assert_eq!(before.diff(&ctx.snapshot()), "", "{what}");
}

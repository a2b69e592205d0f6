//! containerd: ADD of loopback and the pods' network at the same time, and every DEL twice.

use std::thread;

use serde_json::{Value, json};

use super::caller::{Caller, address, container_id, is_without, reaches};
use super::recordings::{CONTAINERD_BRIDGE, CONTAINERD_LOOPBACK, UID};
use crate::cases::joined;
use crate::outcome::{Stop, TestResult, ensure, mismatch};
use crate::stub::{Reply, Stub};
use crate::test_context::TestContext;
use cni_lab::{Node, Place as _};
use cni_runner::{Attachment, Network, Version};

/// containerd's arguments at ADD and at DEL, in two of the many orders that it uses.
const ADD_ARGS: &str = "K8S_POD_UID=<UID>;IgnoreUnknown=1;K8S_POD_INFRA_CONTAINER_ID=<CID>;K8S_POD_NAMESPACE=default;\
                        K8S_POD_NAME=web-0";
const DEL_ARGS: &str = "IgnoreUnknown=1;K8S_POD_INFRA_CONTAINER_ID=<CID>;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;\
                        K8S_POD_UID=<UID>";
const NAME: &str = "containerd-net";

/// containerd's two networks; loopback only if the folder has the plugin and it supports containerd's
/// version.
struct Networks {
    loopback: Option<Network>,
    pods: Network,
}

impl Networks {
    fn new(caller: &Caller<'_>) -> Result<Networks, Stop> {
        let loopback =
            if caller.has("loopback", Version::V0_3_1)? { Some(of_one(CONTAINERD_LOOPBACK)?) } else { None };
        let mut bridge: Value = serde_json::from_str(CONTAINERD_BRIDGE)?;
        if let Some(keys) = bridge.as_object_mut() {
            for key in ["runtimeConfig", "name", "cniVersion"] {
                keys.remove(key);
            }
        }
        let pods = caller.chain(NAME, caller.version_of(Version::V1_0_0)?, bridge)?;
        Ok(Networks { loopback, pods })
    }

    /// DEL of both networks, in containerd's order.
    fn del(&self, caller: &Caller<'_>, id: &str, netns: &str) -> TestResult {
        if let Some(loopback) = &self.loopback {
            caller.del(loopback, &attachment(id, netns, "lo", DEL_ARGS)?)?;
        }
        caller.del(&self.pods, &attachment(id, netns, "eth0", DEL_ARGS)?)
    }
}

/// A network with one plugin, from the plugin's recorded input.
fn of_one(stdin: &str) -> Result<Network, Stop> {
    Ok(Network::from_value(&serde_json::from_str(stdin)?)?)
}

fn attachment(id: &str, netns: &str, ifname: &str, args: &str) -> Result<Attachment, Stop> {
    let mut attachment =
        Attachment::new(id, netns, ifname).with_args(args.replace("<CID>", id).replace("<UID>", UID));
    if ifname == "eth0" {
        let config: Value = serde_json::from_str(CONTAINERD_BRIDGE)?;
        attachment.capabilities = config["runtimeConfig"].as_object().cloned().unwrap_or_default();
        let ports = json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}]);
        let rates = json!({"IngressRate": 10_000_000, "IngressBurst": 4_294_967_295_u64, "EgressRate": 0, "EgressBurst": 0});
        attachment = attachment.with_capability("portMappings", ports).with_capability("bandwidth", rates);
    }
    Ok(attachment)
}

pub(super) fn pod(test: &TestContext<'_>, round: u8) -> TestResult {
    let id = container_id(round);
    let caller = Caller::new(test)?;
    let networks = Networks::new(&caller)?;
    let pod = test.node()?.pod("cni-3f0c0a4e-6d2b-7c1d-9a55-0b1c2d3e4f50")?;
    let netns = pod.path().to_string_lossy().into_owned();
    let (on_lo, on_eth0) =
        (attachment(&id, &netns, "lo", ADD_ARGS)?, attachment(&id, &netns, "eth0", ADD_ARGS)?);
    let result = thread::scope(|scope| -> Result<Value, Stop> {
        let other = networks.loopback.as_ref().map(|loopback| scope.spawn(|| caller.add(loopback, &on_lo)));
        let result = caller.add(&networks.pods, &on_eth0);
        if let Some(other) = other {
            joined(other)?;
            let lo = pod.sh("ip link show lo")?;
            ensure(lo.contains("LOOPBACK,UP"), "lo to be up", lo)?;
        }
        result
    })?;
    let address = address(&result)?;
    ensure(address.starts_with("10.88."), "an address in 10.88.0.0/16", &address)?;
    caller.reserved(NAME, &[&address])?;
    reaches(&pod, "10.88.0.1")?;

    networks.del(&caller, &id, &netns)?;
    is_without(&pod, "eth0")?;
    caller.reserved(NAME, &[])?;
    pod.delete()?;
    networks.del(&caller, &id, "")
}

/// The second of three plugins fails at ADD. containerd then calls DEL for all of them, with the namespace
/// and without a result.
pub(super) fn failed_add(test: &TestContext<'_>, round: u8) -> TestResult {
    let id = container_id(round);
    let folder = tempfile::tempdir_in(test.dir())?;
    let refusing = Stub::new(folder.path(), "refuse")?;
    refusing.on("ADD", Reply::Error { code: 100, msg: "not today", status: 1 })?;
    let caller = Caller::with_folders(test, &[folder.path().to_owned()])?;
    let mut networks = Networks::new(&caller)?;
    let refuse = json!({"type": "refuse"});
    networks.pods.plugins.insert(1, refuse.as_object().cloned().unwrap_or_default());
    let pod = test.node()?.pod("failed")?;
    let netns = pod.path().to_string_lossy().into_owned();

    if let Some(loopback) = &networks.loopback {
        caller.add(loopback, &attachment(&id, &netns, "lo", ADD_ARGS)?)?;
    }
    caller.refused_add(&networks.pods, &attachment(&id, &netns, "eth0", ADD_ARGS)?, 100)?;
    networks.del(&caller, &id, &netns)?;
    is_without(&pod, "eth0")?;
    caller.reserved(NAME, &[])?;
    pod.delete()?;
    Ok(())
}

/// After a reboot the files below /var/lib/cni exist, but no namespaces, links or rules.
pub(super) fn after_a_reboot(test: &TestContext<'_>, round: u8) -> TestResult {
    let id = container_id(round);
    let last_time = TestContext::new(test.plugin, test.version, true)?;
    let caller = Caller::new(&last_time)?;
    let networks = Networks::new(&caller)?;
    let pod = last_time.node()?.pod("one")?;
    let netns = pod.path().to_string_lossy().into_owned();
    if let Some(loopback) = &networks.loopback {
        caller.add(loopback, &attachment(&id, &netns, "lo", ADD_ARGS)?)?;
    }
    let address = address(&caller.add(&networks.pods, &attachment(&id, &netns, "eth0", ADD_ARGS)?)?)?;
    let node = test.node()?;
    copy_state(last_time.node()?, node)?;

    let caller = Caller::new(test)?;
    caller.reserved(NAME, &[&address])?;
    networks.del(&caller, &id, "")?;
    caller.reserved(NAME, &[])
}

/// Copies the state that survives a reboot: the files below /var/lib/cni.
fn copy_state(from: &Node, to: &Node) -> TestResult {
    let files = from.sh("cd /var/lib/cni && find . -type f")?;
    if files.is_empty() {
        return mismatch("files below /var/lib/cni after ADD", "none");
    }
    for file in files.lines() {
        let path = format!("/var/lib/cni/{file}");
        to.write_file(&path, &from.read_file(&path)?)?;
    }
    Ok(())
}

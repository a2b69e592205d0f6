//! Replays of recorded calls, with the recorded environment and the recorded bytes of standard input.

use serde_json::{Value, json};

use super::caller::Caller;
use super::recordings::{
    CID, CNITOOL_BRIDGE, CNITOOL_GC, CONTAINERD_BRIDGE, CONTAINERD_LOOPBACK, CONTAINERD_PORTMAP,
    CONTAINERD_PORTMAP_AGAIN, CRIO_BANDWIDTH, CRIO_BRIDGE_CHECK, CRIO_GC, CRIO_GC_NONE, CRIO_STATUS,
    NERDCTL_FIREWALL, NERDCTL_PORTMAP, PODMAN_BRIDGE, PODMAN_PORTMAP, UID,
};
use crate::call::TIMEOUT;
use crate::outcome::{Stop, TestResult, ensure, mismatch, skip};
use crate::test_context::TestContext;
use cni_lab::{Place as _, Pod};
use cni_runner::{Attachment, Exec, HeldOpen, Output, TookTooLong, Version};

const CONTAINERD_ARGS: &str = "IgnoreUnknown=1;K8S_POD_INFRA_CONTAINER_ID=<CID>;K8S_POD_NAMESPACE=default;\
                               K8S_POD_NAME=web-0;K8S_POD_UID=<UID>";
const CRIO_ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=<CID>;\
                         K8S_POD_UID=<UID>";
const NERDCTL_ARGS: &str = "IP=10.4.0.77;MAC=92:d0:c6:0a:29:33;NERDCTL_CNI_DHCP_HOSTNAME=abc;IgnoreUnknown=1";
/// The name of the namespace in the recordings.
const POD: &str = "cni-1";

/// The calls of one caller on the test's node.
struct Replay<'l> {
    test: &'l TestContext<'l>,
    caller: Caller<'l>,
    container_id: String,
    args: String,
    /// How many calls were replayed.
    made: u32,
}

impl<'l> Replay<'l> {
    fn new(test: &'l TestContext<'l>, container_id: &str, args: &str) -> Result<Replay<'l>, Stop> {
        let args = args.replace("<CID>", CID).replace("<UID>", UID);
        Ok(Replay { test, caller: Caller::new(test)?, container_id: container_id.to_owned(), args, made: 0 })
    }

    /// Replays a call if the folder has the plugin with the recorded version. The call must succeed, and ADD
    /// must print a result.
    fn call(
        &mut self,
        verb: &str,
        plugin: &str,
        netns: &str,
        ifname: &str,
        stdin: &str,
    ) -> Result<Option<Value>, Stop> {
        let stdin = stdin.replace("<CID>", CID);
        let config: Value = serde_json::from_str(&stdin)?;
        let version = config["cniVersion"].as_str().and_then(Version::parse).unwrap_or(Version::V0_1_0);
        if version > self.test.version || !self.caller.has(plugin, version)? {
            return Ok(None);
        }
        self.made += 1;
        let attachment = match verb {
            "STATUS" | "GC" => Attachment::default(),
            _ => Attachment::new(&self.container_id, netns, ifname).with_args(&self.args),
        };
        let exec = Exec::new(self.test.plugin.dir.join(plugin), verb)
            .attachment(&attachment)
            .stdin(stdin)
            .timeout(TIMEOUT);
        let output = match self.test.node()?.call(&exec) {
            Err(error) if error.is::<TookTooLong>() || error.is::<HeldOpen>() => {
                return mismatch(
                    format!("{verb} of {plugin} to end and close its streams"),
                    format!("{error:#}"),
                );
            }
            other => other?,
        };
        let said = format!("{}{}", output.stdout_text(), output.stderr_text());
        ensure(
            output.success(),
            format!("success of the recorded {verb} of {plugin}: {}", exec_text(&exec)),
            said,
        )?;
        if verb == "ADD" { document(&output).map(Some) } else { Ok(None) }
    }

    /// Skips the test case if no call was replayed.
    fn end(self) -> TestResult {
        if self.made == 0 {
            skip("the folder has none of the plugins with the recorded version")
        } else {
            Ok(())
        }
    }

    /// A pod with the interface of the previous plugin; names and addresses are those of the recordings.
    fn pod_with(&self, host: &str, address: &str) -> Result<Pod, Stop> {
        let pod = self.test.node()?.pod(POD)?;
        // The kernel removes the previous link some time after its namespace, so remove it now.
        self.test.node()?.sh(&format!(
            "ip link del {host} 2>/dev/null; ip link add {host} type veth peer name eth0 netns {POD} && ip link set {host} up"
        ))?;
        pod.sh(&format!("ip link set eth0 up && ip addr add {address} dev eth0"))?;
        Ok(pod)
    }

    /// ADD and DEL of a chained plugin; DEL with the result of ADD.
    fn chained(&mut self, plugin: &str, host: &str, address: &str, stdin: &str) -> TestResult {
        let pod = self.pod_with(host, address)?;
        let netns = netns(&pod);
        if let Some(result) = self.call("ADD", plugin, &netns, "eth0", stdin)? {
            self.call("DEL", plugin, &netns, "eth0", &with_previous(stdin, Some(result))?)?;
        }
        pod.delete()?;
        Ok(())
    }

    /// ADD, CHECK if `checked`, and DEL of a chain's first plugin, then a second DEL without namespace and
    /// result.
    fn first(&mut self, plugin: &str, ifname: &str, stdin: &str, checked: bool) -> TestResult {
        let pod = self.test.node()?.pod(POD)?;
        let netns = netns(&pod);
        let added = self.call("ADD", plugin, &netns, ifname, &with_previous(stdin, None)?)?;
        if let Some(result) = added {
            let full = with_previous(stdin, Some(result))?;
            if checked {
                self.call("CHECK", plugin, &netns, ifname, &full)?;
            }
            self.call("DEL", plugin, &netns, ifname, &full)?;
            self.call("DEL", plugin, "", ifname, &with_previous(stdin, None)?)?;
        }
        pod.delete()?;
        Ok(())
    }
}

fn netns(pod: &Pod) -> String {
    pod.path().to_string_lossy().into_owned()
}

fn document(output: &Output) -> Result<Value, Stop> {
    match output.document() {
        Ok(document) if document.is_object() => Ok(document),
        _ => mismatch("one result on standard output", output.stdout_text()),
    }
}

fn exec_text(exec: &Exec) -> String {
    format!("CNI_ARGS={} {}", exec.args, String::from_utf8_lossy(&exec.stdin))
}

/// A recorded input with another `prevResult` or with none; unchanged bytes if nothing changes.
fn with_previous(stdin: &str, previous: Option<Value>) -> Result<String, Stop> {
    let mut config: Value = serde_json::from_str(stdin)?;
    if previous.is_none() && config.get("prevResult").is_none() {
        return Ok(stdin.to_owned());
    }
    if let Some(keys) = config.as_object_mut() {
        keys.remove("prevResult");
        keys.extend(previous.map(|result| ("prevResult".to_owned(), result)));
    }
    Ok(config.to_string())
}

pub(super) fn containerd(test: &TestContext<'_>) -> TestResult {
    let mut replay = Replay::new(test, CID, CONTAINERD_ARGS)?;
    replay.first("loopback", "lo", CONTAINERD_LOOPBACK, false)?;
    replay.first("bridge", "eth0", CONTAINERD_BRIDGE, false)?;
    // go-cni's form of values that are not set.
    let mut unset: Value = serde_json::from_str(CONTAINERD_BRIDGE)?;
    unset["runtimeConfig"] = json!({
        "dns": {"Servers": null, "Searches": null, "Options": null}, "io.kubernetes.cri.pod-annotations": null});
    replay.first("bridge", "eth0", &unset.to_string(), false)?;
    replay.chained("portmap", "veth7882bc69", "10.88.0.2/16", CONTAINERD_PORTMAP)?;
    replay.call("DEL", "portmap", "", "eth0", CONTAINERD_PORTMAP_AGAIN)?;
    let mut bandwidth: Value = serde_json::from_str(CONTAINERD_PORTMAP)?;
    bandwidth["type"] = "bandwidth".into();
    bandwidth["capabilities"] = json!({"bandwidth": true});
    bandwidth["runtimeConfig"] = json!({"bandwidth": {
        "IngressRate": 10_000_000, "IngressBurst": 4_294_967_295_u64, "EgressRate": 0, "EgressBurst": 0}});
    replay.chained("bandwidth", "veth7882bc69", "10.88.0.2/16", &bandwidth.to_string())?;
    replay.end()
}

pub(super) fn crio(test: &TestContext<'_>) -> TestResult {
    let mut replay = Replay::new(test, CID, CRIO_ARGS)?;
    replay.call("STATUS", "portmap", "", "", CRIO_STATUS)?;
    replay.call("GC", "portmap", "", "", CRIO_GC_NONE)?;
    replay.first("bridge", "eth0", CRIO_BRIDGE_CHECK, true)?;
    replay.chained("bandwidth", "veth0a384591", "10.88.0.2/16", CRIO_BANDWIDTH)?;
    replay.call("GC", "portmap", "", "", CRIO_GC)?;
    replay.end()
}

pub(super) fn podman(test: &TestContext<'_>) -> TestResult {
    let args = "IgnoreUnknown=1;K8S_POD_NAME=web;MAC=92:d0:c6:0a:29:33;IP=10.88.0.77";
    let mut replay = Replay::new(test, CID, args)?;
    replay.first("bridge", "eth0", PODMAN_BRIDGE, false)?;
    replay.chained("portmap", "veth62292218", "10.88.0.77/16", PODMAN_PORTMAP)?;
    replay.end()
}

pub(super) fn nerdctl(test: &TestContext<'_>) -> TestResult {
    let mut replay = Replay::new(test, &format!("default-{CID}"), NERDCTL_ARGS)?;
    replay.call("DEL", "firewall", "", "eth0", NERDCTL_FIREWALL)?;
    // The recorded path is that of a process that no longer exists.
    let stdin = NERDCTL_PORTMAP.replace("/proc/4711/ns/net", &format!("/run/netns/{POD}"));
    let early = with_previous(&stdin, None)?;
    replay.call("DEL", "portmap", "", "eth0", &early)?;
    replay.chained("portmap", "vethd109e9b2", "10.4.0.77/24", &stdin)?;
    replay.end()
}

pub(super) fn cnitool(test: &TestContext<'_>) -> TestResult {
    let mut replay = Replay::new(test, "cnitool-77383ca0d1715733ca6f", "IgnoreUnknown=1;argA=foo")?;
    replay.call("GC", "portmap", "", "", CNITOOL_GC)?;
    replay.first("bridge", "eth0", CNITOOL_BRIDGE, false)?;
    replay.end()
}

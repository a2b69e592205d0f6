//! The kubelet's side of CRI for sandboxes only. Debian 12 has no `crictl`, but curl can speak gRPC over a
//! Unix socket.

use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::containerd::{Containerd, PAUSE_IMAGE, SOCKET};
use super::host::NETWORK;
use super::message::{Message, find, find_all};
use crate::{Background, Node, Place as _};

const PAUSE: &str = include_str!("pause_image.sh");
/// The containerd namespace of CRI's images and containers.
const NAMESPACE: &str = "k8s.io";
/// The protocol number of TCP in CRI.
const TCP: u16 = 0;

impl Containerd<'_> {
    /// Makes and imports the image of the pause process that keeps a sandbox alive. Needed once, before the
    /// first sandbox.
    pub fn import_pause_image(&self) -> anyhow::Result<()> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        self.host
            .node
            .tool("sh", &["-c", PAUSE, "sh", PAUSE_IMAGE, architecture])
            .context("make the pause image")?;
        self.ctr(&["--namespace", NAMESPACE, "images", "import", "/run/containerd/image/image.tar"])?;
        Ok(())
    }

    /// RunPodSandbox: a pod without containers. `ports` are pairs of a TCP port of the node and the port of
    /// the pod that it leads to. Returns the sandbox's ID.
    pub fn run_sandbox(
        &self,
        pod: &str,
        ports: &[(u16, u16)],
        annotations: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let metadata = Message::default().text(1, pod).text(2, &format!("uid-{pod}")).text(3, "default");
        let linux = Message::default().text(1, &format!("/{}", self.host.cgroup));
        let mut config = Message::default().message(1, &metadata).text(2, pod);
        for (host, container) in ports {
            let mapping = Message::default().number(1, TCP).number(2, *container).number(3, *host);
            config = config.message(5, &mapping);
        }
        for (key, value) in annotations {
            config = config.message(7, &Message::default().text(1, key).text(2, value));
        }
        let config = config.message(8, &linux);
        let answer = self.cri("RunPodSandbox", &Message::default().message(1, &config))?;
        text(find(&answer, 1)).context("the answer to RunPodSandbox has no sandbox ID")
    }

    /// PodSandboxStatus: the sandbox's addresses, its main address first.
    pub fn sandbox_ips(&self, id: &str) -> anyhow::Result<Vec<String>> {
        let answer = self.cri("PodSandboxStatus", &Message::default().text(1, id))?;
        let network = find(&answer, 1).and_then(|status| find(status, 5));
        let network = network.context("the answer to PodSandboxStatus has no network")?;
        let additional = find_all(network, 2).map(|ip| find(ip, 1));
        let ips = std::iter::once(find(network, 1)).chain(additional).map(text);
        ips.collect::<Option<_>>().context("an address in the answer to PodSandboxStatus is empty")
    }

    /// UpdateRuntimeConfig: the pod CIDRs of the node, separated by commas, as the kubelet reports them. Waits until
    /// containerd has a network.
    pub fn set_pod_cidrs(&self, cidrs: &str) -> anyhow::Result<()> {
        let network = Message::default().text(1, cidrs);
        let config = Message::default().message(1, &network);
        self.cri("UpdateRuntimeConfig", &Message::default().message(1, &config))?;
        self.host.wait_until("a network of containerd", || self.is_network_ready().unwrap_or(false))
    }

    /// Replaces the network, and waits until containerd has read it.
    pub fn set_network(&self, network: &Value) -> anyhow::Result<()> {
        let (node, text) = (self.host.node, network.to_string());
        node.write_file("/etc/cni/net.d/new", &text)?;
        node.sh(&format!("mv /etc/cni/net.d/new {NETWORK}"))?;
        self.host.wait_until("the new network", || self.has_read(&text).unwrap_or(false))
    }

    /// Verbose Status: whether containerd has read this text of a network.
    fn has_read(&self, text: &str) -> anyhow::Result<bool> {
        let answer = self.cri("Status", &Message::default().number(1, 1))?;
        let infos = find_all(&answer, 2).filter(|info| find(info, 1) == Some(b"cniconfig"));
        let read: Vec<Value> =
            infos.filter_map(|info| find(info, 2)).flat_map(serde_json::from_slice).collect();
        let mut networks = read.iter().filter_map(|config| config["Networks"].as_array()).flatten();
        Ok(networks.any(|network| network["Config"]["Source"] == text))
    }

    /// Status: whether containerd has a network for pods.
    pub fn is_network_ready(&self) -> anyhow::Result<bool> {
        let answer = self.cri("Status", &Message::default())?;
        let status = find(&answer, 1).context("the answer to Status has no status")?;
        // A condition that is true has no reason.
        let mut reasons = find_all(status, 1).filter_map(|condition| find(condition, 3));
        Ok(!reasons.any(|reason| reason == b"NetworkPluginNotReady"))
    }

    /// StopPodSandbox, which calls DEL.
    pub fn stop_sandbox(&self, id: &str) -> anyhow::Result<()> {
        self.cri("StopPodSandbox", &Message::default().text(1, id)).map(drop)
    }

    /// RemovePodSandbox, which calls DEL again.
    pub fn remove_sandbox(&self, id: &str) -> anyhow::Result<()> {
        self.cri("RemovePodSandbox", &Message::default().text(1, id)).map(drop)
    }

    /// Runs a shell command in a sandbox's network namespace, with the node's file system.
    pub fn sandbox_sh(&self, network: &str, id: &str, script: &str) -> anyhow::Result<String> {
        let netns = self.sandbox_netns(network, id)?;
        self.host.node.tool("nsenter", &[&format!("--net={netns}"), "--", "sh", "-c", script])
    }

    /// Starts a command in a sandbox's network namespace, with the node's file system.
    pub fn sandbox_spawn(&self, network: &str, id: &str, command: &[&str]) -> anyhow::Result<Background> {
        let netns = self.sandbox_netns(network, id)?;
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--net={netns}")).arg("--").args(command);
        self.host.node.spawn(nsenter)
    }

    /// The path of a sandbox's network namespace.
    pub fn sandbox_netns(&self, network: &str, id: &str) -> anyhow::Result<String> {
        // CRI does not report the namespace's path; the cached ADD result does.
        let cached = self.host.node.read_file(format!("{}/results/{network}-{id}-eth0", Node::CACHE_DIR))?;
        let cached: Value = serde_json::from_str(&cached).context("parse the cached result")?;
        let interfaces = cached["result"]["interfaces"].as_array().into_iter().flatten();
        let netns = interfaces.filter_map(|interface| interface["sandbox"].as_str()).next();
        netns.map(str::to_owned).context("the cached result has no interface with a sandbox")
    }

    /// Makes one call of CRI's RuntimeService and returns the answer's message.
    fn cri(&self, method: &str, request: &Message) -> anyhow::Result<Vec<u8>> {
        let dir = tempfile::tempdir()?;
        let file = |name: &str| dir.path().join(name);
        std::fs::write(file("request"), request.framed())?;
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--noproxy", "*", "--http2-prior-knowledge", "--unix-socket"]);
        curl.arg(SOCKET);
        curl.args(["--header", "content-type: application/grpc", "--header", "te: trailers"]);
        curl.arg("--data-binary").arg(format!("@{}", file("request").display()));
        curl.arg("--dump-header").arg(file("head")).arg("--output").arg(file("answer"));
        curl.arg(format!("http://localhost/runtime.v1.RuntimeService/{method}"));
        self.host.run(&mut curl).with_context(|| format!("curl for {method}"))?;

        // gRPC sends the status in the trailers, which curl writes to the same file as the headers.
        let head = std::fs::read_to_string(file("head"))?;
        if !head.lines().any(|line| line.trim() == "grpc-status: 0") {
            bail!("{method}: {}", head.trim());
        }
        let answer = std::fs::read(file("answer"))?;
        Ok(answer.get(5..).unwrap_or_default().to_vec())
    }
}

fn text(bytes: Option<&[u8]>) -> Option<String> {
    String::from_utf8(bytes?.to_vec()).ok()
}

//! The runtimes and their network.

use anyhow::Context as _;
use cni_lab::{Containerd, Node, Podman, bin_dir};
use serde_json::{Value, json};

/// Bits per second in each direction.
const RATE: u64 = 10_000_000;
const LIMITS: [(&str, &str); 2] =
    [("kubernetes.io/ingress-bandwidth", "10M"), ("kubernetes.io/egress-bandwidth", "10M")];

/// `backend` is that of `firewall`. Those of the other plugins are iptables too, or nftables.
fn network(backend: &str, limits: &Value) -> Value {
    let others = if backend == "iptables" { backend } else { "nftables" };
    let mut bandwidth = json!({"type": "bandwidth"});
    bandwidth.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
    json!({"name": "pods", "cniVersion": "0.4.0", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
            "ipMasq": true, "ipMasqBackend": others, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
        {"type": "portmap", "capabilities": {"portMappings": true}, "backend": others},
        {"type": "firewall", "backend": backend},
        bandwidth,
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "77"}}]})
}

pub(crate) enum Runtime<'n> {
    Containerd(Containerd<'n>),
    Podman(Podman<'n>),
}

impl<'n> Runtime<'n> {
    pub(crate) fn containerd(node: &'n Node, backend: &str) -> Runtime<'n> {
        let network = network(backend, &json!({"capabilities": {"bandwidth": true}}));
        let containerd = Containerd::start(node, &bin_dir().unwrap(), &network).unwrap();
        containerd.import_pause_image().unwrap();
        Runtime::Containerd(containerd)
    }

    /// podman has no limits, so the network has them.
    pub(crate) fn podman(node: &'n Node, backend: &str) -> Runtime<'n> {
        let burst = u32::MAX;
        let limits =
            json!({"ingressRate": RATE, "ingressBurst": burst, "egressRate": RATE, "egressBurst": burst});
        let podman = Podman::start(node, &bin_dir().unwrap(), Some(&network(backend, &limits))).unwrap();
        Runtime::Podman(podman)
    }

    /// Returns the ID and the path of the network namespace.
    pub(crate) fn run(&self, name: &str, ports: &[(u16, u16)]) -> anyhow::Result<(String, String)> {
        match self {
            Runtime::Containerd(containerd) => {
                let id = containerd.run_sandbox(name, ports, &LIMITS)?;
                let netns = containerd.sandbox_netns("pods", &id)?;
                Ok((id, netns))
            }
            Runtime::Podman(podman) => {
                let publish = ports.iter().map(|(host, container)| format!("--publish={host}:{container}"));
                let publish: Vec<String> = publish.collect();
                podman.run(name, &publish.iter().map(String::as_str).collect::<Vec<_>>())?;
                let format = "{{.Id}} {{.NetworkSettings.SandboxKey}}";
                let said = podman.podman(&["inspect", "--format", format, name])?;
                let (id, netns) = said.trim().split_once(' ').context("no namespace")?;
                Ok((id.to_owned(), netns.to_owned()))
            }
        }
    }

    pub(crate) fn remove(&self, id: &str) -> anyhow::Result<()> {
        match self {
            Runtime::Containerd(containerd) => {
                containerd.stop_sandbox(id)?;
                containerd.remove_sandbox(id)
            }
            Runtime::Podman(podman) => podman.podman(&["rm", "--force", "--time", "0", id]).map(drop),
        }
    }

    /// Runs `ferrule` in the runtime's namespaces, and returns its output. The error quotes the output too.
    pub(crate) fn ferrule(&self, words: &str) -> anyhow::Result<String> {
        let script = format!("/opt/cni/bin/ferrule {words} --bin-dir /opt/cni/bin --init 1 2>&1");
        match self {
            Runtime::Containerd(containerd) => containerd.sh_beside(&script),
            Runtime::Podman(podman) => podman.sh_beside(&script),
        }
    }
}

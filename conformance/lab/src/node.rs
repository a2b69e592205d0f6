//! A network namespace and mount namespace that plugins take for a machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::namespaces::Namespaces;
use super::{Client, NodeRuntime, Place, Pod};
use cni_runner::Runtime;

/// A private network namespace with `lo` up and forwarding off, and a private mount namespace with its own
/// `/run`, `/var/lib/cni` and `/sys`. Everything else (the plugins, `/tmp`, ...) is shared with the machine.
/// Clones are the same node.
#[derive(Debug, Clone)]
pub struct Node {
    namespaces: Arc<Namespaces>,
    clients: Arc<AtomicUsize>,
}

impl Node {
    /// The folder of [`Node::write_conflist`].
    pub const NETCONF_DIR: &str = "/run/cni/net.d";
    /// The cache folder of [`Node::runtime`]; also the default of `cnirun`.
    pub const CACHE_DIR: &str = "/var/lib/cni";

    /// Makes a node; needs root.
    pub fn new() -> anyhow::Result<Node> {
        let node = Node { namespaces: Arc::new(Namespaces::new()?), clients: Arc::default() };
        node.run(|| {
            // IFF_LOOPBACK and IFF_UP (linux/if.h), without a process.
            fs::write("/sys/class/net/lo/flags", "0x9").context("bring lo up")?;
            // A new namespace inherits the machine's IPv4 settings; tests must not depend on them.
            fs::write("/proc/sys/net/ipv4/ip_forward", "0").context("turn forwarding off")
        })??;
        Ok(node)
    }

    /// Makes a network namespace at `/run/netns/<name>`.
    pub fn pod(&self, name: &str) -> anyhow::Result<Pod> {
        Pod::new(&self.namespaces, name)
    }

    /// Makes a network namespace that a veth pair links with this node, in a subnet such as `192.0.2.0/24` or
    /// `2001:db8::/64`.
    pub fn outside_client(&self, subnet: &str) -> anyhow::Result<Client> {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        Client::new(self, &self.namespaces, number, subnet)
    }

    /// A runtime that calls plugins from these folders on this node, with the default cache. It kills a
    /// plugin after 60 seconds. For exact timings set `runtime.timeout` to `None`: with a limit the runtime
    /// polls for the plugin's end.
    pub fn runtime<P: Into<PathBuf>>(&self, path: impl IntoIterator<Item = P>) -> NodeRuntime<'_> {
        let mut runtime = Runtime::new(path, Node::CACHE_DIR);
        runtime.timeout = Some(Duration::from_secs(60));
        NodeRuntime::new(self, runtime)
    }

    /// Writes a configuration to [`Node::NETCONF_DIR`] and returns its path in the node.
    pub fn write_conflist(&self, file_name: &str, content: &Value) -> anyhow::Result<PathBuf> {
        let path = Path::new(Node::NETCONF_DIR).join(file_name);
        self.write_file(&path, &content.to_string())?;
        Ok(path)
    }

    /// The path of the node's network namespace as the machine sees it; valid while the node lives.
    pub fn netns_path(&self) -> PathBuf {
        self.namespaces.net_path()
    }
}

impl Place for Node {
    fn enter(&self) -> anyhow::Result<()> {
        self.namespaces.enter()
    }

    fn state_dirs(&self) -> &[&'static str] {
        &["/var/lib/cni", "/run/cni"]
    }
}

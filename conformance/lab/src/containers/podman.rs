//! podman with its CNI backend.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::host::{Host, ROOTFS, require_tools};
use crate::{Node, Place as _};

const CONFIG: &str = "/run/containers/containers.conf";
const STORAGE: &str = "/run/containers/storage.conf";
const TOOLS: [(&str, &str); 2] = [("podman", "podman"), ("sleep", "coreutils")];

/// A podman; it writes only to the private `/run` of a node. All its processes end with this
/// value, even if the test is killed.
#[derive(Debug)]
pub struct Podman<'n> {
    host: Host<'n>,
}

impl<'n> Podman<'n> {
    /// Prepares podman with the plugins in a folder and with one network, which is named `pods`. Without one, podman
    /// makes its default network by itself.
    pub fn start(node: &'n Node, plugins: &Path, network: Option<&Value>) -> anyhow::Result<Podman<'n>> {
        require_tools(&TOOLS)?;
        // podman has no daemon, but the PID namespace needs a first process.
        let host = Host::start(node, plugins, network, &["sleep", "infinity"])?;
        let default_network = if network.is_some() { "pods" } else { "podman" };
        node.write_file(CONFIG, &CONTAINERS_CONF.replace("DEFAULT_NETWORK", default_network))?;
        node.write_file(STORAGE, STORAGE_CONF)?;
        Ok(Podman { host })
    }

    /// Runs `podman` with these arguments and returns its standard output.
    pub fn podman(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.host.command("podman");
        command.env("CONTAINERS_CONF", CONFIG).env("CONTAINERS_STORAGE_CONF", STORAGE).args(arguments);
        self.host.run(&mut command).with_context(|| format!("podman {}", arguments.join(" ")))
    }

    /// Starts a container that sleeps, with further options for `podman run`.
    pub fn run(&self, container: &str, options: &[&str]) -> anyhow::Result<()> {
        let cgroup = format!("/{}", self.host.cgroup);
        let mut arguments = vec!["run", "--detach", "--name", container, "--cgroup-parent", &cgroup];
        arguments.extend(options);
        arguments.extend(["--rootfs", ROOTFS, "/bin/sleep", "1000"]);
        self.podman(&arguments).map(drop)
    }

    /// Runs an image to its end, with further options for `podman run`, and returns its standard output.
    pub fn run_image(&self, image: &str, options: &[&str], arguments: &[&str]) -> anyhow::Result<String> {
        let cgroup = format!("/{}", self.host.cgroup);
        self.podman(&[&["run", "--rm", "--cgroup-parent", &cgroup], options, &[image], arguments].concat())
    }

    /// Runs a shell command in a running container and returns its standard output.
    pub fn sh(&self, container: &str, script: &str) -> anyhow::Result<String> {
        self.podman(&["exec", container, "/bin/sh", "-c", script])
    }
}

/// With locks in files: podman's default, locks in shared memory, would be shared with the machine.
const CONTAINERS_CONF: &str = r#"
[network]
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
network_config_dir = "/etc/cni/net.d"
default_network = "DEFAULT_NETWORK"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = "/run/containers/libpod"
"#;

const STORAGE_CONF: &str = r#"
[storage]
driver = "vfs"
runroot = "/run/containers/run"
graphroot = "/run/containers/graph"
"#;

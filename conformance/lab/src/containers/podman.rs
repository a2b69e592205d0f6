//! podman with its CNI backend.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::host::{Host, ROOTFS, require_tools};
use crate::{Node, Place as _};

/// The configuration that users of podman are told to use, and where it belongs.
const EXAMPLE: &str = include_str!("../../../../examples/runtimes/podman.conf");
const DROP_IN: &str = "/etc/containers/containers.conf.d/ferrule.conf";
const CONFIG: &str = "/etc/containers/containers.conf";
const STORAGE: &str = "/etc/containers/storage.conf";
const TOOLS: [(&str, &str); 2] = [("podman", "podman"), ("sleep", "coreutils")];

/// A podman with the network settings of `examples/runtimes/podman.conf`; it writes only to the private `/run` and
/// `/etc` of a node. All its processes end with this value, even if the test is killed.
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
        node.write_file(DROP_IN, EXAMPLE)?;
        node.write_file(STORAGE, STORAGE_CONF)?;
        Ok(Podman { host })
    }

    /// Runs `podman` with these arguments and returns its standard output.
    pub fn podman(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.host.command("podman");
        command.env_remove("CONTAINERS_CONF").env_remove("CONTAINERS_STORAGE_CONF").args(arguments);
        self.host.run(&mut command).with_context(|| format!("podman {}", arguments.join(" ")))
    }

    /// Starts a container that sleeps, with further options for `podman run`.
    pub fn run(&self, container: &str, options: &[&str]) -> anyhow::Result<()> {
        let cgroup = format!("/{}", self.host.cgroup);
        let mut arguments = vec!["run", "--detach", "--name", container, "--cgroup-parent", &cgroup];
        // For ping, which Debian's configuration of podman does not allow.
        arguments.extend(["--cap-add", "NET_RAW"]);
        arguments.extend(options);
        arguments.extend(["--rootfs", ROOTFS, "/bin/sleep", "1000"]);
        self.podman(&arguments).map(drop)
    }

    /// Kills the command of a running container. Returns when podman has started it again, as a restart policy of
    /// the container asks.
    pub fn crash(&self, container: &str) -> anyhow::Result<()> {
        let pid = || self.podman(&["inspect", "--format", "{{.State.Pid}}", container]);
        let old = pid()?;
        self.host.kill(&old)?;
        let is_another = |new: String| new.trim() != "0" && new != old;
        self.host.wait_until("the restart of the container", || pid().is_ok_and(is_another))
    }

    /// Runs an image to its end, with further options for `podman run`, and returns its standard output.
    pub fn run_image(&self, image: &str, options: &[&str], arguments: &[&str]) -> anyhow::Result<String> {
        let cgroup = format!("/{}", self.host.cgroup);
        self.podman(&[&["run", "--rm", "--cgroup-parent", &cgroup], options, &[image], arguments].concat())
    }

    /// Runs a shell command in podman's namespaces and returns its standard output.
    pub fn sh_beside(&self, script: &str) -> anyhow::Result<String> {
        self.host.run(self.host.command("sh").args(["-c", script]))
    }

    /// Runs a shell command in a running container and returns its standard output.
    pub fn sh(&self, container: &str, script: &str) -> anyhow::Result<String> {
        self.podman(&["exec", container, "/bin/sh", "-c", script])
    }
}

/// The rest of the configuration. With locks in files: podman's default, locks in shared memory, would be shared with the machine.
const CONTAINERS_CONF: &str = r#"
[network]
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

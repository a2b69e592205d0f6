//! containerd and its client `ctr`.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::host::{Host, ROOTFS, require_tools};
use crate::{Background, Node, Place as _, eventually};

pub(super) const SOCKET: &str = "/run/containerd/socket";
pub(super) const PAUSE_IMAGE: &str = "ferrule.test/pause:1";
const CONFIG: &str = "/run/containerd/config.toml";
/// The PID of the running containerd.
const PID: &str = "/run/containerd/pid";

/// The configuration that users of containerd 1.x are told to use.
const EXAMPLE: &str = include_str!("../../../../examples/runtimes/containerd-1.toml");

/// Starts containerd again whenever it ends, as systemd does. Arguments: the configuration, the file for the PID.
const SUPERVISOR: &str = r#"while :; do
    containerd --root /run/containerd/root --state /run/containerd/state --config "$1" &
    echo $! >"$2"
    wait $!
    sleep 0.1
done"#;

/// The programs that are needed, each with the Debian package that contains it.
const TOOLS: [(&str, &str); 6] = [
    ("containerd", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("ctr", "containerd"),
    ("curl", "curl"),
    ("ldd", "libc-bin"),
    ("tar", "tar"),
];

/// A containerd with one network, in the namespaces of a node; it writes only to the node's private `/run`.
/// All its processes end with this value, even if the test is killed.
///
/// Containers use the machine's file system with a writable overlay.
#[derive(Debug)]
pub struct Containerd<'n> {
    pub(super) host: Host<'n>,
}

impl<'n> Containerd<'n> {
    /// Starts containerd with the plugins in a folder and with one network, for plain `ctr` and for CRI. Its
    /// configuration is that of `examples/runtimes/containerd-1.toml`.
    pub fn start(node: &'n Node, plugins: &Path, network: &Value) -> anyhow::Result<Containerd<'n>> {
        Containerd::start_with(node, plugins, Some(network), EXAMPLE)
    }

    /// Starts containerd with a configuration of version 2 that sets no path of containerd itself.
    pub fn start_with(
        node: &'n Node,
        plugins: &Path,
        network: Option<&Value>,
        config: &str,
    ) -> anyhow::Result<Containerd<'n>> {
        require_tools(&TOOLS)?;
        node.write_file(CONFIG, &format!("{config}{}", settings()))?;
        let host = Host::start(node, plugins, network, &["sh", "-c", SUPERVISOR, "sh", CONFIG, PID])?;
        let containerd = Containerd { host };
        containerd.wait_for_cri()?;
        Ok(containerd)
    }

    fn wait_for_cri(&self) -> anyhow::Result<()> {
        self.host.wait_until("an answer from containerd", || self.is_network_ready().is_ok())
    }

    /// Kills containerd, but not the shims, containers and plugins that it has started. Returns when the next
    /// containerd serves CRI.
    pub fn crash(&self) -> anyhow::Result<()> {
        let pid = self.host.node.read_file(PID)?;
        self.host.kill(&pid)?;
        let has_ended = |new: String| new != pid && new.ends_with('\n');
        self.host.wait_until("the next containerd", || self.host.node.read_file(PID).is_ok_and(has_ended))?;
        self.wait_for_cri()
    }

    /// The parent of all control groups, which are removed with this value.
    pub fn cgroup(&self) -> &str {
        &self.host.cgroup
    }

    /// Starts a program, such as a kubelet, in containerd's namespaces.
    pub fn spawn_beside(&self, program: &str, arguments: &[&str]) -> anyhow::Result<Background> {
        let mut command = self.host.command(program);
        command.args(arguments);
        self.host.node.spawn(command)
    }

    /// Runs a shell command in containerd's namespaces and returns its standard output.
    pub fn sh_beside(&self, script: &str) -> anyhow::Result<String> {
        self.host.run(self.host.command("sh").args(["-c", script]))
    }

    /// Runs `ctr` with these arguments and returns its standard output.
    pub fn ctr(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.host.run(&mut ctr(&self.host, arguments)).with_context(|| format!("ctr {}", arguments.join(" ")))
    }

    /// Starts `ctr run --rm --cni` with a command of the machine in a new container. `ctr` calls ADD after it
    /// has made the container, and DEL, without a namespace, after the command has ended; so `ctr` keeps
    /// running in between.
    pub fn run(&self, container: &str, command: &[&str]) -> anyhow::Result<Background> {
        let cgroup = format!("/{}/{container}", self.host.cgroup);
        let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
        let mut arguments = vec!["run", "--rm", "--cni", "--cgroup", &cgroup, "--env", path];
        arguments.extend(["--rootfs", ROOTFS, container]);
        arguments.extend(command);
        let background = self.host.node.spawn(ctr(&self.host, &arguments))?;
        let running = || {
            let tasks = self.ctr(&["task", "list"]).unwrap_or_default();
            tasks.lines().any(|line| line.starts_with(&format!("{container} ")) && line.ends_with("RUNNING"))
        };
        if !eventually(Duration::from_secs(20), running) {
            bail!("container {container} was not running after 20 seconds\n{}", self.host.log());
        }
        Ok(background)
    }

    /// Runs a shell command in a running container and returns its standard output.
    pub fn sh(&self, container: &str, script: &str) -> anyhow::Result<String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let id = format!("exec{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.ctr(&["task", "exec", "--exec-id", &id, container, "/bin/sh", "-c", script])
    }

    /// Kills a container's command and waits until `ctr run` has cleaned up after it.
    pub fn kill(&self, container: &str, mut run: Background) -> anyhow::Result<()> {
        self.ctr(&["task", "kill", "--signal", "KILL", container])?;
        let ended = || !matches!(run.child().try_wait(), Ok(None));
        if !eventually(Duration::from_secs(20), ended) {
            bail!("ctr run {container} was still running 20 seconds after its container was killed");
        }
        let status = run.child().wait().context("wait for ctr run")?;
        // 128 plus the number of SIGKILL; any other status is an error of ctr.
        if status.code() != Some(128 + 9) {
            bail!("ctr run {container}: {status}");
        }
        Ok(())
    }
}

fn ctr(host: &Host<'_>, arguments: &[&str]) -> Command {
    // ctr looks up PIDs that containerd reports, so it must run in the same PID namespace.
    let mut command = host.command("ctr");
    command.args(["--address", SOCKET]).args(arguments);
    command
}

/// What a test node needs beside the configuration under test, as tables that such a configuration does not have.
fn settings() -> String {
    format!(
        r#"
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
disable_apparmor = true
# Without CAP_SYS_RESOURCE, as in many virtual machines for tests, the kernel refuses to lower the score.
restrict_oom_score_adj = true
"#
    )
}

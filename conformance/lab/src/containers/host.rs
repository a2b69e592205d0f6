//! What containerd and podman have in common: a node prepared for containers, and a PID namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{Background, Node, Place as _, eventually};

const SET_UP: &str = include_str!("set_up.sh");
const START: &str = include_str!("start.sh");

/// The root file system of containers: the machine's, with a writable overlay.
pub(super) const ROOTFS: &str = "/run/containers/rootfs";
/// The file of the network.
pub(super) const NETWORK: &str = "/etc/cni/net.d/10-test.conflist";
/// Standard output and standard error of the first process.
const LOG: &str = "/run/containers/log";

/// A node with control groups, with plugins and at most one network in the usual folders, and with a PID namespace.
/// When the first process of that namespace ends, the kernel kills all others, shims and containers too, even
/// if the test is killed.
#[derive(Debug)]
pub(super) struct Host<'n> {
    pub(super) node: &'n Node,
    /// The first process of the PID namespace; killed first when this is dropped.
    process: Option<Background>,
    /// The first process's PID in the machine's PID namespace.
    pid: String,
    /// The parent of all control groups. Control groups have no namespace here, so the name is unique on the
    /// machine.
    pub(super) cgroup: String,
}

impl<'n> Host<'n> {
    /// Prepares a node and starts a command as the first process of a PID namespace.
    pub(super) fn start(
        node: &'n Node,
        plugins: &Path,
        network: Option<&Value>,
        command: &[&str],
    ) -> anyhow::Result<Host<'n>> {
        let plugins = plugins.to_str().context("the path of the plugin folder is not UTF-8")?;
        node.tool("sh", &["-c", SET_UP, "sh", plugins]).context("prepare the node for containers")?;
        if let Some(network) = network {
            node.write_file(NETWORK, &network.to_string())?;
        }

        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount", "--propagation", "unchanged"]);
        unshare.args(["sh", "-c", START, "sh"]).args(command);
        let process = Some(node.spawn(unshare)?);
        let mut host = Host { node, process, pid: String::new(), cgroup: new_cgroup_name() };
        let mut pid = String::new();
        host.wait_until("the PID of the first process", || {
            pid = node.read_file("/run/containers/pid").unwrap_or_default();
            // One write puts the PID and the newline into the file.
            pid.ends_with('\n')
        })?;
        pid.trim().clone_into(&mut host.pid);
        Ok(host)
    }

    /// A command in the PID and mount namespace of the first process, and in the node's network namespace.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid, "--mount", "--pid", "--", program]);
        command
    }

    /// Kills a process, whose PID is that of the PID namespace.
    pub(super) fn kill(&self, pid: &str) -> anyhow::Result<()> {
        self.run(self.command("sh").args(["-c", "kill -KILL \"$1\"", "sh", pid.trim()]))?;
        Ok(())
    }

    /// Runs a command to its end and returns its standard output.
    pub(super) fn run(&self, command: &mut Command) -> anyhow::Result<String> {
        checked(self.node.exec(command)?)
    }

    /// Waits for a condition at most 20 seconds. The error quotes the log of the first process.
    pub(super) fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) -> anyhow::Result<()> {
        if !eventually(Duration::from_secs(20), condition) {
            bail!("timed out after 20 seconds waiting for {what}\n{}", self.log());
        }
        Ok(())
    }

    pub(super) fn log(&self) -> String {
        self.node.read_file(LOG).unwrap_or_default()
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        self.process = None;
        // Control groups outlive the namespaces. The kernel refuses to remove one until its last process has
        // been reaped.
        eventually(Duration::from_secs(5), || {
            matches!(self.node.run(|| remove_cgroups(&self.cgroup)), Ok(Ok(())))
        });
    }
}

/// Fails unless each program is in PATH. The tools are pairs of a program and the Debian package that
/// contains it.
pub(super) fn require_tools(tools: &[(&str, &str)]) -> anyhow::Result<()> {
    let common = [("nsenter", "util-linux"), ("runc", "runc"), ("unshare", "util-linux")];
    let path = std::env::var_os("PATH").unwrap_or_default();
    for (tool, package) in common.iter().chain(tools) {
        if !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
            bail!("{tool} is not in PATH: install Debian's package {package}");
        }
    }
    Ok(())
}

fn new_cgroup_name() -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    format!("ferrule-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Removes the control groups of this name from every hierarchy.
fn remove_cgroups(name: &str) -> std::io::Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    let mut groups = vec![root.join(name)];
    for entry in fs::read_dir(root)? {
        groups.push(entry?.path().join(name));
    }
    groups.iter().filter(|group| group.is_dir()).try_for_each(remove_cgroup)
}

fn remove_cgroup(group: &PathBuf) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_cgroup(&path)?;
        }
    }
    fs::remove_dir(group)
}

/// The standard output; if the status is not 0, an error that quotes standard output and standard error.
pub(super) fn checked(output: Output) -> anyhow::Result<String> {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("{}\n{stdout}{stderr}", output.status);
    }
    Ok(stdout.into_owned())
}

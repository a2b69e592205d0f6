//! A node with links, a folder for the kubelet, and the daemon.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use cni_lab::{Background, Node, Place as _, TIMEOUT, eventually};
use ferrule_fake_kubelet::{Knobs, Kubelet};
use serde_json::Value;
use tempfile::TempDir;

/// The resource of [`CONFIG`].
pub(crate) const NIC: &str = "ferrule.dev/nic";
/// All links whose names begin with `eth`.
pub(crate) const CONFIG: &str = "resourceList: [{resourceName: nic, selectors: {ifNames: ['eth*']}}]";

pub(crate) struct Lab {
    pub(crate) node: Node,
    folder: TempDir,
    program: PathBuf,
}

impl Lab {
    /// A node with the links `eth1` and `eth2`, whose peers are `peer1` and `peer2`, and [`CONFIG`].
    pub(crate) fn new() -> Lab {
        Lab::of(env!("CARGO_BIN_EXE_ferrule-nic").into())
    }

    /// The same with another build of the program.
    pub(crate) fn of(program: PathBuf) -> Lab {
        let lab = Lab { node: Node::new().unwrap(), folder: tempfile::tempdir().unwrap(), program };
        lab.sh("for n in 1 2; do ip link add eth$n type veth peer name peer$n; done");
        lab.configure(CONFIG);
        lab
    }

    /// 1,000 links, and a configuration with 10 resources for them: `d7-1` belongs to `ferrule.dev/r7`.
    pub(crate) fn crowd(&self) {
        let resource = |n| format!("{{resourceName: r{n}, selectors: {{ifNames: ['d{n}-*']}}}}");
        let resources: Vec<String> = (0..10).map(resource).collect();
        self.configure(&format!("resourceList: [{}]", resources.join(",")));
        let pairs = (0..10).flat_map(|n| (0..50).map(move |link| (n, link)));
        let lines =
            pairs.map(|(n, link)| format!("link add d{n}-{link} type veth peer name d{n}-{}\n", link + 50));
        fs::write(self.path("links"), lines.collect::<String>()).unwrap();
        self.sh(&format!("ip -batch {}", self.path("links").display()));
    }

    /// Waits until the node has the devices of [`Lab::crowd`].
    pub(crate) fn crowded(&self, kubelet: &Kubelet) {
        self.until("1,000 devices", || (0..10).all(|n| kubelet.allocatable(&crowd_resource(n)) == 100));
    }

    pub(crate) fn sh(&self, script: &str) {
        self.node.sh(script).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The kubelet's folder.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.path("kubelet/device-plugins")
    }

    pub(crate) fn configure(&self, text: &str) {
        fs::write(self.path("config"), text).unwrap();
    }

    /// A kubelet that runs.
    pub(crate) fn kubelet(&self, knobs: Knobs) -> Kubelet {
        Kubelet::started(self.plugins(), knobs)
    }

    /// The program with its paths. `wrapper` is a command before it, such as strace.
    pub(crate) fn command(&self, wrapper: &str, arguments: &str) -> Command {
        let mut command = Command::new("sh");
        let (root, program) = (self.folder.path().display(), self.program.display());
        command.args(["-c", &format!(
            "exec {wrapper} {program} --config {root}/config --state {root}/state --kubelet-dir {root}/kubelet \
             --device-plugin-dir {root}/kubelet/device-plugins --node-name n1 --kubeconfig {root}/kubeconfig \
             --data-dir {root}/data {arguments} 2>>{root}/log"
        )]);
        command
    }

    pub(crate) fn daemon(&self, arguments: &str) -> Daemon {
        Daemon(self.node.spawn(self.command("", arguments)).unwrap())
    }

    /// A daemon under a command such as strace.
    pub(crate) fn node_daemon(&self, wrapper: &str) -> Daemon {
        Daemon(self.node.spawn(self.command(wrapper, "")).unwrap())
    }

    /// A process on the node. From a pod its process ID leads back: the node's namespace has no name there.
    pub(crate) fn anchor(&self) -> Background {
        let mut command = Command::new("sleep");
        command.arg("1000");
        self.node.spawn(command).unwrap()
    }

    /// Runs the program to its end. Standard error is in [`Lab::log`].
    pub(crate) fn run(&self, arguments: &str) -> Output {
        self.node.exec(&mut self.command("", arguments)).unwrap()
    }

    /// Whether the state file has a device that went into a pod while a daemon looked on. Of the machine's own cards, which have no
    /// link on this node, the daemon does not know the namespace.
    pub(crate) fn has_recorded_a_move(&self) -> bool {
        let state = fs::read_to_string(self.path("state")).unwrap_or_default();
        let devices: Vec<Value> = serde_json::from_str(&state).unwrap_or_default();
        devices.iter().any(|device| device["place"]["pod"]["namespace"].is_i64())
    }

    /// What the daemons have said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the daemon says this.
    pub(crate) fn says(&self, text: &str) {
        self.until(text, || self.log().contains(text));
    }

    /// Waits until the condition holds.
    pub(crate) fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        assert!(eventually(TIMEOUT, condition), "not {what}: {}", self.log());
    }

    /// Waits until the kubelet has this [`list`].
    pub(crate) fn lists(&self, kubelet: &Kubelet, expected: &str) {
        let is_right = eventually(TIMEOUT, || list(kubelet) == expected);
        assert!(is_right, "{}, not {expected}: {}", list(kubelet), self.log());
    }

    /// Waits until the node has as many healthy devices.
    pub(crate) fn allocatable(&self, kubelet: &Kubelet, count: usize) {
        self.until(&format!("{count} allocatable"), || kubelet.allocatable(NIC) == count);
    }
}

/// The kubelet's devices of the resource [`NIC`]: IDs, with `!` before an unhealthy one.
pub(crate) fn list(kubelet: &Kubelet) -> String {
    let text = |(id, healthy): (String, bool)| if healthy { id } else { format!("!{id}") };
    kubelet.health(NIC).into_iter().map(text).collect::<Vec<_>>().join(" ")
}

/// The resources of [`Lab::crowd`].
pub(crate) fn crowd_resource(number: usize) -> String {
    format!("ferrule.dev/r{number}")
}

/// A running daemon.
pub(crate) struct Daemon(Background);

impl Daemon {
    pub(crate) fn pid(&mut self) -> u32 {
        self.0.child().id()
    }

    /// A number of `/proc/PID/status`.
    pub(crate) fn status(&mut self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Sends a signal such as `HUP`.
    pub(crate) fn signal(&mut self, signal: &str) {
        let pid = self.pid().to_string();
        // It may have ended already.
        let _ = Command::new("kill").args([&format!("-{signal}"), &pid]).output().unwrap();
    }

    /// Sends a signal that ends it. Returns the exit status.
    pub(crate) fn end(&mut self, signal: &str) -> Option<i32> {
        self.signal(signal);
        self.0.child().wait().unwrap().code()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.child().try_wait().unwrap().is_none()
    }
}

//! Where one trial takes place: a node of its own and a plugin that is called there.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::call::{Answer, Call};
use super::kernel;
use super::layout;
use super::outcome::{Stop, TestResult, skip};
use super::plugin_under_test::{PluginUnderTest, Role};
use super::stub::{Reply, Stub};
use crate::fixture::{Node, Place as _, Pod, Snapshot, eventually};
use crate::runner::{Attachment, Version};

/// The name of the network in every trial that is not about names.
pub const NETWORK: &str = "trialnet";
/// The programs that a snapshot needs.
const SNAPSHOT_TOOLS: [&str; 5] = ["ip", "tc", "nft", "iptables-nft-save", "ip6tables-nft-save"];

/// How long the kernel may take to remove what went with a namespace.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(20);
/// What host-local keeps for all containers of a network together: where it looks for an address next.
const SHARED: &str = "last_reserved_ip";

/// The world of one trial.
#[derive(Debug)]
pub struct TestContext<'a> {
    /// The plugin on trial.
    pub plugin: &'a PluginUnderTest,
    /// The version of the configurations.
    pub version: Version,
    node: Option<Node>,
    dir: TempDir,
    ipam: OnceLock<Stub>,
    containers: Mutex<Vec<String>>,
    interfaces: AtomicU32,
}

/// A container's interface to be, with what the plugins before have made of it.
#[derive(Debug)]
pub struct Target {
    /// The container's namespace.
    pub pod: Pod,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// The result of the plugins before, for a chained plugin.
    pub previous: Option<Value>,
}

impl<'a> TestContext<'a> {
    /// A world with a node of its own, which needs root, or without.
    ///
    /// # Errors
    /// A skip if the kernel lacks what the plugin needs.
    pub fn new(
        plugin: &'a PluginUnderTest,
        version: Version,
        with_node: bool,
    ) -> Result<TestContext<'a>, Stop> {
        if with_node {
            kernel::has_all(&plugin.description)?;
        }
        let node = with_node.then(Node::new).transpose()?;
        let test = TestContext {
            plugin,
            version,
            node,
            dir: tempfile::Builder::new().prefix("cni-conformance-").tempdir()?,
            ipam: OnceLock::new(),
            containers: Mutex::default(),
            interfaces: AtomicU32::new(2),
        };
        if let Some(node) = &test.node {
            for command in &plugin.description.setup {
                node.sh(command)?;
            }
        }
        if plugin.delegates {
            let ipam = Stub::new(test.dir(), "trial-ipam")?;
            ipam.on("ADD", Reply::Json(test.ipam_result()))?;
            test.ipam.get_or_init(|| ipam);
        }
        Ok(test)
    }

    /// The node.
    ///
    /// # Errors
    /// If the trial claims to need none.
    pub fn node(&self) -> Result<&Node, Stop> {
        Ok(self.node.as_ref().context("this trial was declared to need no node")?)
    }

    /// The node, if the trial has one.
    pub fn node_if_any(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Starts a process on the node; where the trial is made without one, on the machine.
    ///
    /// # Errors
    /// It cannot be started, or the node not be entered.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        match &self.node {
            Some(node) => node.run(|| command.spawn()).map_err(io::Error::other)?,
            None => command.spawn(),
        }
    }

    /// A folder for stubs and files, outside of every folder that a snapshot looks into.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `CNI_PATH`: the subject's folder, then that of the stubs.
    pub fn path(&self) -> String {
        format!("{}:{}", self.plugin.dir.display(), self.dir().display())
    }

    /// The stub that the plugin delegates to, if it delegates. It gives every container an address of its own.
    pub fn ipam(&self) -> Result<&Stub, Stop> {
        self.ipam.get().map_or_else(|| skip("it delegates to no IPAM plugin"), Ok)
    }

    /// Makes the stub answer ADD with a result, which is written in the shape of a version.
    ///
    /// # Errors
    /// A skip if the plugin delegates to no IPAM plugin.
    pub fn ipam_gives(&self, model: &Value, version: Version) -> Result<(), Stop> {
        Ok(self.ipam()?.on("ADD", Reply::Json(layout::render(model, version)))?)
    }

    /// What the stub answers to ADD, in the shape of the lab's version: 10.77.0.`@N@`/24, gateway 10.77.0.1, a default route.
    pub fn ipam_result(&self) -> Value {
        layout::render(&layout::one_address(), self.version)
    }

    /// The plugin's configuration as a runtime would send it, without `prevResult`.
    pub fn config(&self) -> Map<String, Value> {
        let mut config = self.plugin.description.config.clone();
        if let Some(ipam) = self.ipam.get() {
            config.insert("ipam".to_owned(), json!({"type": ipam.name()}));
        }
        config.insert("type".to_owned(), self.plugin.name.clone().into());
        config.insert("name".to_owned(), NETWORK.into());
        config.insert("cniVersion".to_owned(), self.version.to_string().into());
        config
    }

    /// A new container with its namespace. For a chained plugin there is an interface in it already, one end of a veth
    /// pair, with an address, and the result that says so.
    ///
    /// # Errors
    /// A skip for a chained plugin below 0.3.0, where there are no chains.
    pub fn target(&self, container_id: &str) -> Result<Target, Stop> {
        let ifname = if self.plugin.role == Role::Loopback { "lo" } else { "eth0" };
        self.target_with(container_id, ifname)
    }

    /// The same with another interface name.
    ///
    /// # Errors
    /// As [`TestContext::target`].
    pub fn target_with(&self, container_id: &str, ifname: &str) -> Result<Target, Stop> {
        let node = self.node()?;
        let pod = node.pod(container_id)?;
        self.containers.lock().unwrap_or_else(PoisonError::into_inner).push(container_id.to_owned());
        let netns = pod.path().to_string_lossy().into_owned();
        let previous = match self.plugin.role {
            Role::Chained => Some(self.interface_for(&pod, &netns, ifname)?),
            _ => None,
        };
        let (container_id, ifname) = (container_id.to_owned(), ifname.to_owned());
        Ok(Target { pod, container_id, netns, ifname, previous })
    }

    /// Makes what an interface plugin would have made in a pod, and says it in a result of the lab's version.
    ///
    /// # Errors
    /// A skip below 0.3.0.
    pub fn interface_for(&self, pod: &Pod, netns: &str, ifname: &str) -> Result<Value, Stop> {
        if self.version < Version::V0_3_0 {
            return skip("chains begin with version 0.3.0");
        }
        let node = self.node()?;
        // Numbers of one's own for each interface of the lab: links on the node, and addresses.
        let number = self.interfaces.fetch_add(1, Ordering::Relaxed);
        let host = format!("host{number}");
        let (address, gateway) = (format!("10.76.{number}.2"), format!("10.76.{number}.1"));
        node.sh(&format!(
            "ip link add {host} type veth peer name {ifname} netns {netns} && ip link set {host} up && \
             ip addr add {gateway}/24 dev {host}"
        ))?;
        pod.sh(&format!(
            "ip link set lo up; ip link set dev {ifname} up && ip addr add {address}/24 dev {ifname} && \
             ip route append default via {gateway}"
        ))?;
        let mac = |text: String| text.trim().to_owned();
        let host_mac = mac(node.sh(&format!("cat /sys/class/net/{host}/address"))?);
        let pod_mac =
            mac(pod.sh(&format!("ip -o link show dev {ifname} | sed 's/.*ether \\([^ ]*\\).*/\\1/'"))?);
        let result = json!({
            "interfaces": [
                {"name": host, "mac": host_mac}, {"name": ifname, "mac": pod_mac, "sandbox": netns}],
            "ips": [{"address": format!("{address}/24"), "gateway": gateway, "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0"}]});
        Ok(layout::render(&result, self.version))
    }

    /// A call without an attachment: VERSION, GC, STATUS, or one that a trial fills in.
    pub fn call(&self, command: &str) -> Call<'_> {
        Call::new(self, command)
    }

    /// A call for an attachment. Host ports are raised by 1 for each container before this one, since only one of them
    /// can have a port.
    pub fn call_for(&self, command: &str, target: &Target) -> Call<'_> {
        let containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        let before = containers.iter().position(|container| *container == target.container_id);
        let mut call = self.call(command).higher_ports(before.unwrap_or_default());
        let attachment = Attachment::new(&target.container_id, &target.netns, &target.ifname);
        call.exec = call.exec.attachment(&attachment);
        call
    }

    /// An ADD as a runtime makes it.
    pub fn add(&self, target: &Target) -> Call<'_> {
        let call = self.call_for("ADD", target);
        match &target.previous {
            Some(previous) => call.previous(previous),
            None => call,
        }
    }

    /// A CHECK as a runtime makes it, with the result of the ADD.
    pub fn check(&self, target: &Target, result: &Value) -> Call<'_> {
        self.call_for("CHECK", target).previous(result)
    }

    /// A DEL as a runtime makes it: with the result of the ADD from 0.4.0 on, if the runtime has it.
    pub fn del(&self, target: &Target, result: Option<&Value>) -> Call<'_> {
        let call = self.call_for("DEL", target);
        match result {
            Some(result) if self.version >= Version::V0_4_0 => call.previous(result),
            _ => call,
        }
    }

    /// Makes an ADD that has to succeed.
    ///
    /// # Errors
    /// A fault if it does not.
    pub fn attached(&self, target: &Target) -> Result<Value, Stop> {
        self.add(target).run()?.result()
    }

    /// Makes a DEL that has to succeed.
    ///
    /// # Errors
    /// A fault if it does not.
    pub fn detached(&self, target: &Target, result: &Value) -> Result<Answer, Stop> {
        let answer = self.del(target, Some(result)).run()?;
        answer.ok()?;
        Ok(answer)
    }

    /// The state of the node.
    ///
    /// # Errors
    /// A skip if a program is missing that it takes.
    pub fn snapshot(&self) -> Result<Snapshot, Stop> {
        kernel::tools(&SNAPSHOT_TOOLS)?;
        let node = self.node()?;
        // A link that goes while it is looked at, as the other end of one in a deleted namespace, makes the look fail.
        let mut taken = Snapshot::take(node);
        eventually(KERNEL_TIMEOUT, || {
            if taken.is_err() {
                taken = Snapshot::take(node);
            }
            taken.is_ok()
        });
        Ok(taken?.ignoring(&[SHARED]))
    }

    /// What has changed on the node since a snapshot, one line each; nothing if it is as it was. A namespace goes some
    /// time after its last user, and the other end of a veth pair in it with it, so these are waited for.
    ///
    /// # Errors
    /// As [`TestContext::snapshot`].
    pub fn changes_since(&self, before: &Snapshot) -> Result<String, Stop> {
        let mut changes = Ok(String::new());
        let is_going = |line: &str| line.starts_with("+ link: ") && line.contains("kind=veth");
        eventually(KERNEL_TIMEOUT, || {
            changes = self.snapshot().map(|now| before.diff(&now));
            // A link that goes while it is looked at is an error of the tool that looks.
            changes.as_ref().is_ok_and(|changes| !changes.lines().any(is_going))
        });
        changes
    }

    /// Ends a trial unless the node is as it was, with the call after which it should be.
    ///
    /// # Errors
    /// A fault that says what is left and what is missing.
    pub fn unchanged_since(&self, before: &Snapshot, answer: &Answer) -> TestResult {
        let changes = self.changes_since(before)?;
        answer.ensure(changes.is_empty(), "a node as it was before", changes)
    }

    /// The state of a pod.
    ///
    /// # Errors
    /// As [`TestContext::snapshot`].
    pub fn snapshot_of(&self, pod: &Pod) -> Result<Snapshot, Stop> {
        kernel::tools(&SNAPSHOT_TOOLS)?;
        Ok(Snapshot::take(pod)?)
    }

    /// Another plugin of the subject's folder.
    ///
    /// # Errors
    /// A skip if it is not there.
    pub fn neighbour(&self, name: &str) -> Result<PathBuf, Stop> {
        self.plugin.neighbour(name).map_or_else(|| skip(format!("the folder has no {name}")), Ok)
    }
}

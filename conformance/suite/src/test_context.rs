//! What a test case works with: a private node, the plugin under test and its configuration.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::call::{Answer, Call, holder_of};
use super::kernel;
use super::layout;
use super::outcome::{Stop, TestResult, skip};
use super::own_device;
use super::plugin_under_test::{PluginUnderTest, Role};
use super::stub::{Reply, Stub};
use cni_lab::{Background, Node, Place as _, Pod, Snapshot, eventually};
use cni_runner::{Attachment, Exec, Version};

/// The network name in all test cases that are not about network names.
pub const NETWORK: &str = "trialnet";
/// The programs that a snapshot needs.
const SNAPSHOT_TOOLS: [&str; 4] = ["tc", "nft", "iptables-nft-save", "ip6tables-nft-save"];

/// How long to wait for the kernel to remove the links of a deleted namespace.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(20);
/// host-local's file with the last address, which all containers of a network share; snapshots ignore it.
const SHARED: &str = "last_reserved_ip";

/// The context of one test run.
#[derive(Debug)]
pub struct TestContext<'a> {
    /// The plugin under test.
    pub plugin: &'a PluginUnderTest,
    /// The CNI version of the configurations.
    pub version: Version,
    // Killed before the node ends.
    daemons: Vec<Background>,
    node: Option<Node>,
    dir: TempDir,
    ipam: OnceLock<Stub>,
    containers: Mutex<Vec<String>>,
    interfaces: AtomicU32,
}

/// The parameters of one attachment that a test case makes.
#[derive(Debug)]
pub struct Target {
    /// The container's network namespace.
    pub pod: Pod,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// For a chained plugin, the result of the plugins before it.
    pub previous: Option<Value>,
}

impl<'a> TestContext<'a> {
    /// A context with or without a node; a node needs root. Skips the test case if the kernel lacks what the
    /// plugin needs.
    pub fn new(
        plugin: &'a PluginUnderTest,
        version: Version,
        with_node: bool,
    ) -> Result<TestContext<'a>, Stop> {
        if with_node {
            kernel::has_all(&plugin.description)?;
        }
        let node = with_node.then(Node::new).transpose()?;
        let mut test = TestContext {
            plugin,
            version,
            daemons: Vec::new(),
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
            for daemon in &plugin.description.daemons {
                let mut command = Command::new("sh");
                let dir = plugin.dir.to_string_lossy();
                command.args(["-c", &format!("exec {}", daemon.run.replace("@DIR@", &dir))]);
                test.daemons.push(node.spawn(command)?);
                if !eventually(KERNEL_TIMEOUT, || node.sh(&daemon.ready).is_ok()) {
                    return Err(anyhow::anyhow!("the daemon does not start: {}", daemon.run).into());
                }
            }
        }
        if plugin.delegates {
            let ipam = Stub::new(test.dir(), "trial-ipam")?;
            ipam.on("ADD", Reply::Json(test.ipam_result()))?;
            test.ipam.get_or_init(|| ipam);
        }
        Ok(test)
    }

    /// The node; an error if the test case was declared with
    /// [`TestCase::anywhere`](super::test_case::TestCase::anywhere) and runs without root.
    pub fn node(&self) -> Result<&Node, Stop> {
        Ok(self.node.as_ref().context("this test case was declared to need no node")?)
    }

    /// Starts a process on the node, or without a node on the machine.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        match &self.node {
            Some(node) => node.run(|| command.spawn()).map_err(io::Error::other)?,
            None => command.spawn(),
        }
    }

    /// A folder for stubs and files. Snapshots do not include it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `CNI_PATH`: the plugin's folder, then the stubs' folder.
    pub fn path(&self) -> String {
        format!("{}:{}", self.plugin.dir.display(), self.dir().display())
    }

    /// The stub of the IPAM plugin, which gives each container another address. Skips the test case if the
    /// plugin does not delegate.
    pub fn ipam(&self) -> Result<&Stub, Stop> {
        self.ipam.get().map_or_else(|| skip("it delegates to no IPAM plugin"), Ok)
    }

    /// Sets the stub's result of ADD, converted to the result layout of a version. Skips the test case if the
    /// plugin does not delegate.
    pub fn ipam_gives(&self, model: &Value, version: Version) -> Result<(), Stop> {
        Ok(self.ipam()?.on("ADD", Reply::Json(layout::render(model, version)))?)
    }

    /// The stub's default result of ADD, in the layout of the context's version: address 10.77.0.`@N@`/24,
    /// gateway 10.77.0.1 and a default route.
    pub fn ipam_result(&self) -> Value {
        layout::render(&layout::one_address(), self.version)
    }

    /// The plugin's configuration as a runtime sends it, without `prevResult`.
    pub fn config(&self) -> Map<String, Value> {
        let mut config = self.plugin.description.config.clone();
        if let Some(ipam) = self.ipam.get() {
            holder_of("ipam", &mut config).insert("ipam".to_owned(), json!({"type": ipam.name()}));
        }
        config.insert("type".to_owned(), self.plugin.name.clone().into());
        config.insert("name".to_owned(), NETWORK.into());
        config.insert("cniVersion".to_owned(), self.version.to_string().into());
        config
    }

    /// A new container with its network namespace. For a chained plugin it already has an interface: one end
    /// of a veth pair with an address, described by [`Target::previous`]. Skips chained plugins below 0.3.0,
    /// which has no chains.
    pub fn target(&self, container_id: &str) -> Result<Target, Stop> {
        let ifname = if self.plugin.role == Role::Loopback { "lo" } else { "eth0" };
        self.target_with(container_id, ifname)
    }

    /// As [`TestContext::target`], with another interface name.
    pub fn target_with(&self, container_id: &str, ifname: &str) -> Result<Target, Stop> {
        let node = self.node()?;
        let pod = node.pod(container_id)?;
        self.containers.lock().unwrap_or_else(PoisonError::into_inner).push(container_id.to_owned());
        let netns = pod.path().to_string_lossy().into_owned();
        let previous = match self.plugin.role {
            Role::Chained => Some(self.interface_for(&pod, &netns, ifname)?),
            _ => None,
        };
        if let Some(command) = &self.plugin.description.interface {
            // Some test cases attach a container a second time.
            let second = (ifname != "eth1").then_some("eth1");
            for name in [ifname].into_iter().chain(second) {
                node.sh(&command.replace("@IFNAME@", name).replace("@NETNS@", &netns))?;
            }
        }
        let (container_id, ifname) = (container_id.to_owned(), ifname.to_owned());
        Ok(Target { pod, container_id, netns, ifname, previous })
    }

    /// Makes the interface that an interface plugin would have made in a pod, and returns its result in the
    /// layout of the context's version. Skips the test case below 0.3.0.
    pub fn interface_for(&self, pod: &Pod, netns: &str, ifname: &str) -> Result<Value, Stop> {
        if self.version < Version::V0_3_0 {
            return skip("chains begin with version 0.3.0");
        }
        let node = self.node()?;
        // Each interface of the context gets its own number, for the link name on the node and for the
        // addresses.
        let number = self.interfaces.fetch_add(1, Ordering::Relaxed);
        let host = format!("host{number}");
        let (address, gateway) = (format!("10.76.{number}.2"), format!("10.76.{number}.1"));
        node.ip(&format!(
            "link add {host} type veth peer name {ifname} netns {netns}\nlink set {host} up\n\
             address add {gateway}/24 dev {host}\n"
        ))?;
        let shown = pod.ip(&format!(
            "link set lo up\nlink set dev {ifname} up\naddress add {address}/24 dev {ifname}\n\
             route append default via {gateway}\nlink show dev {ifname}\n"
        ))?;
        let host_mac = node.read_file(format!("/sys/class/net/{host}/address"))?.trim().to_owned();
        let pod_mac = shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
        let result = json!({
            "interfaces": [
                {"name": host, "mac": host_mac}, {"name": ifname, "mac": pod_mac, "sandbox": netns}],
            "ips": [{"address": format!("{address}/24"), "gateway": gateway, "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0"}]});
        Ok(layout::render(&result, self.version))
    }

    /// A call without an attachment: for VERSION, GC and STATUS, or for the test case to complete.
    pub fn call(&self, command: &str) -> Call<'_> {
        let exec = Exec::new(self.plugin.binary(), command).path(self.path());
        Call::new(exec, self.config(), self.node.as_ref(), self.dir())
    }

    /// A call for an attachment. Its host ports, its VLAN ID and the number of its device are raised by the number of
    /// containers made before this one, since two containers cannot share a port, a VLAN of one master, or a device.
    pub fn call_for(&self, command: &str, target: &Target) -> Call<'_> {
        let containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        let before = containers.iter().position(|container| *container == target.container_id);
        let mut call = self.call(command).higher_ports(before.unwrap_or_default());
        let attachment = Attachment::new(&target.container_id, &target.netns, &target.ifname);
        call.exec = call.exec.attachment(&attachment);
        call
    }

    /// ADD as a runtime calls it.
    pub fn add(&self, target: &Target) -> Call<'_> {
        let call = self.call_for("ADD", target);
        match &target.previous {
            Some(previous) => call.previous(previous),
            None => call,
        }
    }

    /// CHECK as a runtime calls it, with the result of ADD.
    pub fn check(&self, target: &Target, result: &Value) -> Call<'_> {
        self.call_for("CHECK", target).previous(result)
    }

    /// DEL as a runtime calls it: from 0.4.0 on with the result of ADD, if the runtime has it.
    pub fn del(&self, target: &Target, result: Option<&Value>) -> Call<'_> {
        let call = self.call_for("DEL", target);
        match result {
            Some(result) if self.version >= Version::V0_4_0 => call.previous(result),
            _ => call,
        }
    }

    /// Calls ADD, which must succeed, and returns its result.
    pub fn attached(&self, target: &Target) -> Result<Value, Stop> {
        self.add(target).run()?.result()
    }

    /// Calls DEL, which must succeed, and returns its answer.
    pub fn detached(&self, target: &Target, result: &Value) -> Result<Answer, Stop> {
        let answer = self.del(target, Some(result)).run()?;
        answer.ok()?;
        Ok(answer)
    }

    /// The state of the node. Skips the test case if a program for snapshots is not installed.
    pub fn snapshot(&self) -> Result<Snapshot, Stop> {
        kernel::tools(&SNAPSHOT_TOOLS)?;
        let node = self.node()?;
        // It fails if links come or go meanwhile, such as the peer of a link in a deleted namespace.
        let mut taken = Snapshot::take(node);
        eventually(KERNEL_TIMEOUT, || {
            if taken.is_err() {
                taken = Snapshot::take(node);
            }
            taken.is_ok()
        });
        Ok(taken?.ignoring(&[SHARED]))
    }

    /// The changes on the node since a snapshot, one per line; empty if the node is unchanged. Waits up to 20
    /// seconds for new veth links to disappear: the kernel removes a namespace, and with it the peers of its
    /// veth links, some time after its last user has ended. A device that ended with its container is no change.
    pub fn changes_since(&self, before: &Snapshot) -> Result<String, Stop> {
        let mut changes = Ok(String::new());
        let is_going = |line: &str| line.starts_with("+ link: ") && line.contains("kind=veth");
        eventually(KERNEL_TIMEOUT, || {
            changes = self.snapshot().map(|now| before.diff(&now));
            changes.as_ref().is_ok_and(|all| !all.lines().any(is_going) && !own_device::is_any_ending(all))
        });
        changes.map(|changes| own_device::without_ended(&changes))
    }

    /// Ends the test case with a mismatch if the node differs from the snapshot. `answer` is the last call.
    pub fn unchanged_since(&self, before: &Snapshot, answer: &Answer) -> TestResult {
        let changes = self.changes_since(before)?;
        answer.ensure(changes.is_empty(), "no change on the node", changes)
    }

    /// The state of a pod. Skips the test case if a program for snapshots is not installed.
    pub fn snapshot_of(&self, pod: &Pod) -> Result<Snapshot, Stop> {
        kernel::tools(&SNAPSHOT_TOOLS)?;
        Ok(Snapshot::take(pod)?)
    }

    /// The path of another plugin in the same folder. Skips the test case if the folder does not have it.
    pub fn neighbour(&self, name: &str) -> Result<PathBuf, Stop> {
        self.plugin.neighbour(name).map_or_else(|| skip(format!("the folder has no {name}")), Ok)
    }
}

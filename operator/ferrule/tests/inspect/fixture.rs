//! A node with containers of both origins.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use cni_lab::testing::Origin;
use cni_lab::{Background, Node, NodeRuntime, Place as _, Pod, go_bin_dir};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ferrule");

const PLUGINS: [&str; 9] = [
    "bandwidth",
    "bridge",
    "firewall",
    "host-device",
    "host-local",
    "loopback",
    "macvlan",
    "portmap",
    "tuning",
];

/// A node with a first process, and a folder with our plugins.
pub(crate) struct Fixture {
    init: Background,
    pub(crate) node: Node,
    ours: TempDir,
}

/// A container's namespace and its attachment.
pub(crate) struct Container {
    pub(crate) pod: Pod,
    pub(crate) attachment: Attachment,
    pub(crate) address: String,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        let ours = tempfile::tempdir().unwrap();
        for name in PLUGINS {
            symlink(PROGRAM, ours.path().join(name)).unwrap();
        }
        let node = Node::new().unwrap();
        let mut sleep = Command::new("sleep");
        sleep.arg("infinity");
        Fixture { init: node.spawn(sleep).unwrap(), node, ours }
    }

    /// The words with the option that names the node's first process.
    pub(crate) fn words(&self, words: &str) -> String {
        format!("{words} --init {}", self.init.id())
    }

    /// A call of `ferrule` that knows the node's first process.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = command(&self.words(words));
        command.env_remove("CNI_COMMAND");
        command
    }

    pub(crate) fn bin_dir(&self, origin: Origin) -> PathBuf {
        match origin {
            Origin::Ours => self.ours.path().to_owned(),
            Origin::Reference => go_bin_dir().unwrap(),
        }
    }

    pub(crate) fn runtime(&self, origin: Origin) -> NodeRuntime<'_> {
        self.node.runtime([self.bin_dir(origin)])
    }

    /// Attaches a new container, whose host port is `port`. Its ID is the name, which must be unique on the machine.
    pub(crate) fn add(&self, origin: Origin, name: &str, port: u16) -> Container {
        self.add_to(origin, &network(origin), name, |pod| attachment(pod, port))
    }

    /// Writes the record of a physical device, `ens1`, that the kubelet and `host-device` have given to a container.
    pub(crate) fn device(&self, container: &str) {
        let record = json!({"network": "other", "containerId": container, "ifname": "eth0", "netns": "/run/netns/none",
            "name": "ens1", "kind": "", "mtu": 1400, "up": true,
            "pod": "shop/web", "resource": "ferrule.dev/nic", "deviceId": "0000:03:00.1"});
        let file = format!("/run/cni/host-device/{container}:eth0.json");
        self.node.write_file(file, &record.to_string()).unwrap();
    }

    /// Attaches a new container to a network.
    pub(crate) fn add_to(
        &self,
        origin: Origin,
        network: &Network,
        name: &str,
        attachment: impl FnOnce(&Pod) -> Attachment,
    ) -> Container {
        let pod = self.node.pod(name).unwrap();
        let attachment = attachment(&pod);
        let result = self.runtime(origin).add(network, &attachment).unwrap();
        let address = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        Container { pod, attachment, address }
    }

    /// Runs `ferrule` on the node.
    pub(crate) fn run(&self, words: &str) -> Output {
        self.node.exec(&mut self.command(words)).unwrap()
    }

    /// Runs `ferrule`, which has to succeed, and returns its output.
    #[track_caller]
    pub(crate) fn says(&self, words: &str) -> String {
        let output = self.run(words);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{words}: {out}{err}");
        out.into_owned()
    }

    /// The output on a terminal.
    pub(crate) fn on_terminal(&self, columns: u32, words: &str) -> String {
        let script = format!("stty cols {columns}; {words}");
        self.node.tool("script", &["-qec", &script, "/dev/null"]).unwrap().replace('\r', "")
    }

    /// The JSON document of a view.
    #[track_caller]
    pub(crate) fn json(&self, view: &str) -> Value {
        serde_json::from_str(&self.says(&format!("inspect {view} --json"))).unwrap()
    }

    /// The leaks, each as `KIND CONTAINER PLACE`.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let document = self.json("leaks");
        let text = |leak: &Value| {
            let container = leak["container"].as_str().unwrap_or("-");
            format!("{} {container} {}", leak["kind"].as_str().unwrap(), leak["place"].as_str().unwrap())
        };
        document["leaks"].as_array().unwrap().iter().map(text).collect()
    }
}

/// A call of `ferrule`.
pub(crate) fn command(words: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words.split(' '));
    command
}

pub(crate) fn attachment(pod: &Pod, port: u16) -> Attachment {
    pod.attachment("eth0")
        .with_args(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=pod-{}", pod.name()))
        .with_capability("portMappings", json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]))
        .with_capability(
            "bandwidth",
            json!({"ingressRate": 80_000_000, "ingressBurst": 8_000_000,
            "egressRate": 40_000_000, "egressBurst": 8_000_000}),
        )
}

pub(crate) fn network(origin: Origin) -> Network {
    let (name, subnet) = match origin {
        Origin::Ours => ("ours", "10.212.0.0/16"),
        Origin::Reference => ("theirs", "10.213.2.0/24"),
    };
    Network::from_value(&json!({"name": name, "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge", "bridge": format!("br-{name}"), "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true,
            "ipam": {"type": "host-local", "subnet": subnet}},
        {"type": "tuning", "mtu": 1400},
        {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        {"type": "firewall"},
    ]}))
    .unwrap()
}

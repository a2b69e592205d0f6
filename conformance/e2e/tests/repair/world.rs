//! A node with a first process, on which pods are repaired.

use std::process::Command;

use cni_lab::testing::{ask, serve, silent};
use cni_lab::{
    Background, Client, Node, NodeRuntime, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually,
};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

use super::PORT;

/// A node with a first process, and a network whose shared objects exist.
pub(super) struct World {
    pub(super) init: Background,
    pub(super) node: Node,
    pub(super) outside: Client,
    pub(super) network: Network,
}

/// A running pod.
pub(super) struct Running {
    pub(super) pod: Pod,
    pub(super) attachment: Attachment,
    pub(super) port: u16,
    pub(super) process: Option<Background>,
}

pub(super) fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("infinity");
    command
}

impl World {
    pub(super) fn new() -> World {
        World::with(&json!({"type": "firewall"}))
    }

    /// Bridged pods with host ports, and `last` behind.
    pub(super) fn with(last: &Value) -> World {
        let node = Node::new().unwrap();
        let network = json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            last]});
        let world = World {
            init: node.spawn(sleep()).unwrap(),
            outside: node.outside_client("192.0.2.0/24").unwrap(),
            network: Network::from_value(&network).unwrap(),
            node,
        };
        world.end(&mut world.add("repair-first", 9000));
        world
    }

    pub(super) fn runtime(&self) -> NodeRuntime<'_> {
        self.node.runtime([bin_dir().unwrap()])
    }

    /// A pod without a process. Container IDs are unique on the machine: other tests run on it.
    pub(super) fn add(&self, name: &str, port: u16) -> Running {
        let pod = self.node.pod(name).unwrap();
        let mapping = json!([{"hostPort": port, "containerPort": PORT, "protocol": "tcp"}]);
        let attachment = pod.attachment("eth0").with_capability("portMappings", mapping);
        let attachment =
            attachment.with_args(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}"));
        self.runtime().add(&self.network, &attachment).unwrap();
        Running { pod, attachment, port, process: None }
    }

    pub(super) fn start(&self, name: &str, port: u16) -> Running {
        let mut running = self.add(name, port);
        running.process = Some(running.pod.spawn(sleep()).unwrap());
        serve(&running.pod, name, PORT);
        running
    }

    /// As a runtime ends a pod.
    pub(super) fn end(&self, running: &mut Running) {
        running.process = None;
        self.runtime().del(&self.network, &running.attachment).unwrap();
        running.pod.delete().unwrap();
    }

    pub(super) fn check(&self, running: &Running) -> Result<(), String> {
        self.runtime().check(&self.network, &running.attachment).map_err(|error| error.to_string())
    }

    pub(super) fn words(&self, words: &str) -> Vec<String> {
        let mut all: Vec<String> = words.split(' ').map(str::to_owned).collect();
        all.extend(["--init".to_owned(), self.init.id().to_string()]);
        if ["repair", "check", "report"].contains(&all[0].as_str()) {
            all.extend(["--bin-dir".to_owned(), bin_dir().unwrap().display().to_string()]);
        }
        all
    }

    /// What `ferrule` has said, and whether it succeeded. `$@` in the script is the command.
    pub(super) fn ferrule_in(&self, script: &str, words: &str) -> (bool, String) {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(bin_dir().unwrap().join("ferrule")).args(self.words(words));
        let output = self.node.exec(&mut command).unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    #[track_caller]
    pub(super) fn ferrule(&self, words: &str) -> String {
        let (succeeded, said) = self.ferrule_in("\"$@\"", words);
        assert!(succeeded, "{words}: {said}");
        said
    }

    pub(super) fn flush(&self) {
        self.node.tool("nft", &["flush", "ruleset"]).unwrap();
    }

    pub(super) fn is_silent(&self, running: &Running) -> bool {
        silent(&self.outside, "tcp", (self.outside.node_address(), running.port).into())
    }

    /// From outside through the host port, and from the pod to the outside, masqueraded.
    #[track_caller]
    pub(super) fn assert_traffic(&self, running: &Running) {
        let (node, client) = (self.outside.node_address(), self.outside.address());
        let answer = ask(&self.outside, "tcp", (node, running.port).into()).unwrap();
        assert_eq!(answer, format!("{} {client}", running.pod.name()));
        assert_eq!(ask(&running.pod, "tcp", (client, PORT).into()).unwrap(), format!("outside {node}"));
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.node).unwrap().ignoring(&["last_reserved_ip"])
    }

    /// Fails if the node has something that it did not have before. A flush may have removed what the pods share.
    #[track_caller]
    pub(super) fn assert_no_leftovers(&self, before: &Snapshot, when: &str) {
        let left = || {
            let diff = before.diff(&self.snapshot());
            diff.lines().filter(|line| !line.starts_with('-')).map(str::to_owned).collect::<Vec<_>>()
        };
        // The kernel removes some objects after the call that asked for it.
        eventually(TIMEOUT, || left().is_empty());
        assert_eq!(left(), [""; 0], "{when}");
    }
}

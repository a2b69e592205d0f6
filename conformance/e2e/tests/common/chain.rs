//! The usual chain of plugins on one node, called plugin by plugin.
#![allow(dead_code)] // each test program uses a part

use std::path::PathBuf;

use cni_lab::testing::{Expect as _, host_local, succeed};
use cni_lab::{Node, Place as _, bin_dir};
use cni_runner::{Attachment, Exec, Extra, Network, plugin_input};
use ferrule_kit::fold::{CHAIN, fold};
use serde_json::{Value, json};

/// The plugins in the order of ADD. The name is also the position in the list of plugins.
pub(crate) const PLUGINS: [&str; 4] = ["loopback", "bridge", "portmap", "bandwidth"];

/// A node and its network.
pub(crate) struct Chain {
    pub(crate) node: Node,
    dir: PathBuf,
    network: Network,
}

impl Chain {
    /// A node whose first pod has made everything that the pods share.
    pub(crate) fn new(subnets: &[&str]) -> Chain {
        let plugins = json!([
            {"type": "loopback"},
            {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "ipam": host_local(subnets)},
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}}]);
        let list = json!({"name": "pods", "cniVersion": "1.1.0", "plugins": plugins});
        let network = Network::from_value(&list).unwrap();
        let chain = Chain { node: Node::new().unwrap(), dir: bin_dir().unwrap(), network };
        chain.add_before(PLUGINS.len(), &chain.attachment("first", 9000));
        chain
    }

    /// A pod with one mapped port and limits for both directions.
    pub(crate) fn attachment(&self, pod: &str, host_port: u16) -> Attachment {
        let limit = |direction: &str| json!({format!("{direction}Rate"): 100_000_000, format!("{direction}Burst"): 10_000_000});
        let (mut limits, egress) = (limit("ingress"), limit("egress"));
        for (key, value) in egress.as_object().unwrap() {
            limits[key] = value.clone();
        }
        let mapping = json!({"hostPort": host_port, "containerPort": 80, "protocol": "tcp"});
        let pod = self.node.pod(pod).unwrap();
        let attachment = pod.attachment("eth0").with_capability("portMappings", json!([mapping]));
        attachment.with_capability("bandwidth", limits)
    }

    /// One call of a plugin, not yet made.
    pub(crate) fn exec(
        &self,
        verb: &str,
        plugin: usize,
        attachment: &Attachment,
        previous: Option<&Value>,
    ) -> Exec {
        let input = plugin_input(
            &self.network,
            &self.network.plugins[plugin],
            Extra::Attachment(attachment, previous),
        );
        let exec = Exec::new(self.dir.join(PLUGINS[plugin]), verb).attachment(attachment);
        exec.path(self.dir.display().to_string()).stdin(input)
    }

    /// One call of `chain`, which runs all of them.
    pub(crate) fn exec_folded(&self, verb: &str, attachment: &Attachment, previous: Option<&Value>) -> Exec {
        let Network { name, version, plugins, .. } = &self.network;
        let list = json!({"name": name, "cniVersion": version, "plugins": plugins});
        let folded = Network::from_value(&fold(list.as_object().unwrap()).unwrap().into()).unwrap();
        let input = plugin_input(&folded, &folded.plugins[0], Extra::Attachment(attachment, previous));
        let exec = Exec::new(self.dir.join(CHAIN), verb).attachment(attachment);
        exec.path(self.dir.display().to_string()).stdin(input)
    }

    /// Runs ADD of the plugins before this one. Returns the last result.
    pub(crate) fn add_before(&self, plugin: usize, attachment: &Attachment) -> Option<Value> {
        (0..plugin).fold(None, |previous, plugin| {
            Some(succeed(&self.node, &self.exec("ADD", plugin, attachment, previous.as_ref())))
        })
    }

    /// Runs a DEL that must succeed.
    pub(crate) fn del(&self, plugin: usize, attachment: &Attachment, previous: Option<&Value>) {
        self.node.call(&self.exec("DEL", plugin, attachment, previous)).unwrap().ok();
    }
}

//! The LAN with the API server, and the nodes.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cni_lab::testing::Expect as _;
use cni_lab::{Background, Node, Place as _, bin_dir, eventually};
use cni_runner::{Attachment, Exec, Output};
use ferrule_fake_apiserver::{ApiServer, Store};
use serde::Deserialize as _;
use serde_json::{Value, json};

/// The one object of this kind in the manifest.
pub(crate) fn object(kind: &str) -> Value {
    let text = include_str!("../../../../examples/shared/ferrule-blocks.yaml");
    let objects = yaml_serde::Deserializer::from_str(text).map(|object| Value::deserialize(object).unwrap());
    let mut of_kind: Vec<Value> = objects.filter(|object| object["kind"] == kind).collect();
    assert_eq!(of_kind.len(), 1, "objects of {kind}");
    of_kind.remove(0)
}

/// How long a change may take on a busy test machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
const API: &str = "192.0.2.254:6443";
const LOG: &str = "/run/log";
pub(crate) const BLOCKS: &str = "/apis/ferrule.dev/v1alpha1/addressblocks";

pub(crate) struct Lan {
    pub(crate) hub: Node,
    pub(crate) store: Store,
    pub(crate) server: ApiServer,
}

impl Lan {
    pub(crate) fn new() -> Lan {
        let hub = Node::new().unwrap();
        hub.sh("ip link add lan type bridge && ip link set lan up && ip addr add 192.0.2.254/24 dev lan")
            .unwrap();
        let store = Store::default();
        let server = hub.run(|| ApiServer::start(&store, API.parse().unwrap())).unwrap();
        // The daemon needs no other right than the manifest gives it.
        let rules =
            ["ClusterRole", "Role"].map(|kind| object(kind)["rules"].as_array().unwrap().clone()).concat();
        server.faults(|faults| faults.rules = Some(rules));
        Lan { hub, store, server }
    }

    /// A node whose `eth0` is on the LAN, and whose daemon runs.
    pub(crate) fn member(&self, name: &'static str) -> Member {
        let member = self.quiet_member(name);
        member.start();
        member.answers();
        member
    }

    /// As [`Lan::member`], without a daemon.
    pub(crate) fn quiet_member(&self, name: &'static str) -> Member {
        let node = Node::new().unwrap();
        let namespace = node.netns_path();
        self.hub
            .sh(&format!(
                "ip link add to-{name} type veth peer name eth0 netns {} && ip link set to-{name} master lan up",
                namespace.display()
            ))
            .unwrap();
        let number = name.as_bytes()[0] - b'a' + 1;
        node.sh(&format!("ip link set eth0 up && ip addr add 192.0.2.{number}/24 dev eth0")).unwrap();
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{API}")}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]});
        node.write_file("/run/kubeconfig", &kubeconfig.to_string()).unwrap();
        node.write_file("/run/machine-id", name).unwrap();
        Member { name, node, daemon: Mutex::new(None) }
    }

    /// The blocks that a node has, by the API server.
    pub(crate) fn blocks_of(&self, node: &str) -> Vec<String> {
        let all = self.store.list(BLOCKS);
        let own = all.iter().filter(|block| block["spec"]["node"] == node);
        own.map(|block| block["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) node: Node,
    daemon: Mutex<Option<Background>>,
}

/// The configuration of a network of the domain `lan`.
pub(crate) fn network(name: &str, ranges: Value, block_size: u32) -> Value {
    json!({ "cniVersion": "1.1.0", "name": name, "type": "macvlan", "master": "eth0", "ipam": {
        "type": "shared", "domain": "lan", "ranges": ranges, "blockSize": block_size,
        "dataDir": "/run/stores", "ledgers": "/run/ledgers", "socket": "/run/blocks.sock" } })
}

impl Member {
    pub(crate) fn start(&self) {
        self.start_with("--compare-every 2 --keep-empty 2 --keep-scarce 1");
    }

    pub(crate) fn start_with(&self, options: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", &format!(
            "exec {} --kubeconfig /run/kubeconfig --node-name {} --machine-id /run/machine-id blocks --ledgers /run/ledgers \
             --socket /run/blocks.sock {options} 2>>{LOG}",
            env!("CARGO_BIN_EXE_ferrule-node"), self.name
        )]);
        let former = self.daemon.lock().unwrap().replace(self.node.spawn(command).unwrap());
        assert!(former.is_none(), "it runs already");
    }

    /// Waits until the daemon answers.
    pub(crate) fn answers(&self) {
        let unknown = network("unknown", json!([[{"subnet": "10.20.0.0/24"}]]), 4);
        self.until("an answer", || self.call(&unknown, "STATUS", "").success());
    }

    pub(crate) fn kill(&self) {
        let mut daemon = self.daemon.lock().unwrap().take().expect("a daemon");
        daemon.child().kill().unwrap();
        daemon.child().wait().unwrap();
    }

    /// Makes the ledgers those of an earlier boot, while no daemon runs.
    pub(crate) fn forget_boot(&self) {
        let script = r#"for ledger in /run/ledgers/*.json; do [ ! -e "$ledger" ] || sed -i 's/"boot":"[^"]*"/"boot":"earlier"/' "$ledger"; done"#;
        self.node.sh(script).unwrap();
    }

    pub(crate) fn log(&self) -> String {
        self.node.read_file(LOG).unwrap_or_default()
    }

    pub(crate) fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        assert!(eventually(LIMIT, condition), "{} has not: {what}\n{}", self.name, self.log());
    }

    fn exec(&self, network: &Value, verb: &str, container: &str) -> Exec {
        let program = bin_dir().unwrap().join("shared");
        let attachment = Attachment::new(container, "/some/where", "eth0");
        let mut exec = Exec::new(program, verb).attachment(&attachment).path("/some/path");
        exec.inherit = false;
        exec.stdin(network.to_string())
    }

    /// One call of the IPAM plugin.
    pub(crate) fn call(&self, network: &Value, verb: &str, container: &str) -> Output {
        let exec = self.exec(network, verb, container);
        self.node.run(|| exec.run().unwrap()).unwrap()
    }

    /// An ADD that must succeed: its addresses.
    pub(crate) fn add(&self, network: &Value, container: &str) -> Vec<String> {
        self.call(network, "ADD", container).ips()
    }

    /// ADD as the kubelet repeats it: after code 11 again.
    pub(crate) fn add_until(&self, network: &Value, container: &str) -> Vec<String> {
        let (begin, mut pause) = (Instant::now(), Duration::from_millis(200));
        // A thousand at once take their time.
        let limit = 10 * LIMIT;
        loop {
            let output = self.call(network, "ADD", container);
            if output.success() {
                return output.ips();
            }
            let error = output.error();
            assert!(error.code == 11 && begin.elapsed() < limit, "{}: {error}\n{}", self.name, self.log());
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    pub(crate) fn del(&self, network: &Value, container: &str) {
        self.call(network, "DEL", container).ok();
    }

    pub(crate) fn check(&self, network: &Value, container: &str, ips: &[String]) -> Output {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({ "address": format!("{ip}/24") })).collect();
        let mut network = network.clone();
        network["prevResult"] = json!({ "cniVersion": "1.1.0", "ips": ips });
        self.call(&network, "CHECK", container)
    }
}

/// Whether no address is there twice.
pub(crate) fn assert_unique(ips: &[String]) {
    let unique: BTreeSet<&String> = ips.iter().collect();
    assert_eq!(unique.len(), ips.len(), "an address is used twice: {ips:?}");
}

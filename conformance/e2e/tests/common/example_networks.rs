//! The networks of `examples/`, and the nodes that they need.
#![allow(clippy::unwrap_used, dead_code)] // each test program uses a part

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use cni_lab::testing::dnsmasq;
use cni_lab::testing::link_plugin::uplink_of;
use cni_lab::{Background, Node, Place as _, TIMEOUT, bin_dir, eventually};
use cni_runner::Network;
use ferrule_fake_kubelet::{PodResourcesSocket, pod as kubelet_pod};
use serde_json::Value;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// What a network needs.
#[derive(Debug, PartialEq)]
pub(crate) enum Needs {
    /// Nothing.
    Node,
    /// A kernel whose bridges filter VLANs.
    BridgeVlans,
    /// The node's link `eth1` to a LAN, and `ferrule-dhcp` or a kubelet if a network uses it.
    Lan,
}

impl Needs {
    fn of(list: &Value) -> Needs {
        let has = |key: &str| list["plugins"][0].get(key).is_some();
        match (["master", "device", "resourceName"].into_iter().any(has), has("vlan")) {
            (true, _) => Needs::Lan,
            (_, true) => Needs::BridgeVlans,
            _ => Needs::Node,
        }
    }
}

/// The socket of a test's kubelet.
const KUBELET: &str = "/run/kubelet.sock";

/// The conflists' networks with this need, loaded by name as a runtime does. One that asks the kubelet asks that of the test.
pub(crate) fn networks(needs: &Needs) -> anyhow::Result<Vec<Network>> {
    let (mut names, mut asking) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(examples())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "conflist") {
            let mut list: Value =
                serde_json::from_slice(&fs::read(&path)?).with_context(|| path.display().to_string())?;
            if Needs::of(&list) != *needs {
                continue;
            }
            if list["plugins"][0].get("resourceName").is_some() {
                list["plugins"][0]["podResourcesSocket"] = KUBELET.into();
                asking.push(Network::from_value(&list)?);
            } else {
                names.push(list["name"].as_str().context("no name")?.to_owned());
            }
        }
    }
    names.sort();
    let mut networks: Vec<_> =
        names.iter().map(|name| Network::load(examples(), name)).collect::<Result<_, _>>()?;
    networks.append(&mut asking);
    Ok(networks)
}

/// A node on a LAN with a DHCP server, with `ferrule-dhcp`, and with a kubelet that has given it to the pod `web`.
pub(crate) struct Lan {
    pub(crate) node: Node,
    _server: Background,
    _daemon: Background,
    _kubelet: PodResourcesSocket,
}

impl Lan {
    pub(crate) fn new() -> Lan {
        let node = Node::new().unwrap();
        let router = uplink_of(&node);
        node.sh("ip link set uplink0 down && ip link set uplink0 name eth1 && ip link set eth1 up").unwrap();
        let range = "--dhcp-range=10.1.2.50,10.1.2.59,255.255.255.0,1h";
        let _server = dnsmasq(&router, "lan0", &[range]);
        let _daemon = node.spawn(Command::new(bin_dir().unwrap().join("ferrule-dhcp"))).unwrap();
        assert!(eventually(TIMEOUT, || node.sh("test -S /run/cni/dhcp.sock").is_ok()));
        let pods = vec![kubelet_pod("default", "web", &[("ferrule.dev/nic", "eth1")])];
        let _kubelet = node.run(|| PodResourcesSocket::serve(Path::new(KUBELET), pods)).unwrap();
        Lan { node, _server, _daemon, _kubelet }
    }
}

/// A node where flannel's daemon runs too.
pub(crate) fn node_with_flannel() -> anyhow::Result<Node> {
    let node = Node::new()?;
    node.sh("mkdir /run/flannel")?;
    let networks = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24";
    node.write_file(
        "/run/flannel/subnet.env",
        &format!("{networks}\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"),
    )?;
    Ok(node)
}

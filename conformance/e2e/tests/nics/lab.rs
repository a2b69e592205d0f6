//! A node with two NICs that pods can ask for, and `ferrule-nic`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cni_lab::{Background, Containerd, Node, Place as _, Pod, TIMEOUT, bin_dir, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const NIC: &str = "ferrule.dev/nic";
/// An address on the wire of both NICs.
pub(crate) const LAN: &str = "10.1.2.1";
/// What `ferrule-nic` says.
const LOG: &str = "/run/ferrule-nic.log";

/// Puts the folder $1 at /var/lib/kubelet, which the machine need not have.
const KUBELET_FOLDER: &str = "
set -e
mkdir -p /run/lib/upper /run/lib/work /run/lib/all
mount -t overlay -o lowerdir=/var/lib,upperdir=/run/lib/upper,workdir=/run/lib/work overlay /run/lib/all
mkdir -p /run/lib/all/cni /run/lib/all/kubelet
mount --rbind /var/lib/cni /run/lib/all/cni
mount --bind \"$1\" /run/lib/all/kubelet
mount --rbind /run/lib/all /var/lib";

/// The node. Its two NICs are `nic0` and `nic1`.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) node: Node,
    /// `/var/lib/kubelet` of the node.
    pub(crate) kubelet: TempDir,
    _lan: Pod,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        let node = Node::new().unwrap();
        let lan = node.pod("lan").unwrap();
        lan.sh(&format!(
            "ip link add lan type bridge && ip link set lan up && ip address add {LAN}/24 dev lan"
        ))
        .unwrap();
        for n in 0..2 {
            node.sh(&format!("ip link add nic{n} type veth peer name wire{n} netns lan")).unwrap();
            lan.sh(&format!("ip link set wire{n} master lan up")).unwrap();
        }
        let kubelet = tempfile::tempdir().unwrap();
        // The mode that the kubelet gives its folder.
        fs::set_permissions(kubelet.path(), fs::Permissions::from_mode(0o750)).unwrap();
        node.tool("sh", &["-c", KUBELET_FOLDER, "sh", kubelet.path().to_str().unwrap()]).unwrap();
        let config = example("nic.yaml");
        node.write_file("/run/nic.yaml", &config.replace("ens*", "nic*").replace("[physical]", "[veth]"))
            .unwrap();
        Lab { node, kubelet, _lan: lan }
    }

    /// Starts the daemon.
    pub(crate) fn daemon(&self) -> Background {
        let program = bin_dir().unwrap().join("ferrule-nic");
        let run = format!("exec {} --config /run/nic.yaml >>{LOG} 2>&1", program.display());
        let mut command = Command::new("sh");
        command.args(["-c", &run]);
        self.node.spawn(command).unwrap()
    }

    /// Waits until the daemon has registered the NICs so often.
    pub(crate) fn registered(&self, times: usize) {
        let log = || self.node.read_file(LOG).unwrap_or_default();
        let line = format!("{NIC}: registered");
        assert!(eventually(TIMEOUT, || log().matches(&line).count() >= times), "{line}, {times}: {}", log());
    }

    /// Starts containerd with two networks: `pods` for all pods, and that of `examples/95-kubelet-nic.conflist`.
    pub(crate) fn containerd(&self) -> Containerd<'_> {
        let config = example("runtimes/containerd-1-two-networks.toml");
        let containerd =
            Containerd::start_with(&self.node, &bin_dir().unwrap(), Some(&pods()), &config).unwrap();
        self.node
            .write_file("/etc/cni/net.d/95-kubelet-nic.conflist", &example("95-kubelet-nic.conflist"))
            .unwrap();
        // containerd reads all networks when it starts.
        containerd.crash().unwrap();
        containerd.import_pause_image().unwrap();
        containerd
    }

    /// Whether the node itself has these NICs.
    pub(crate) fn has(&self, nics: [bool; 2]) -> bool {
        [0, 1].map(|n| self.node.sh(&format!("ip link show nic{n}")).is_ok()) == nics
    }
}

/// The first network of each pod.
pub(crate) fn pods() -> Value {
    json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [{
        "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]})
}

pub(crate) fn example(file: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

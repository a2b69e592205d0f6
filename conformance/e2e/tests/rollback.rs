//! A node changes from the Go plugins to ours and back while a pod with host ports runs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cni_lab::{Node, Place as _, Snapshot, bin_dir, go_bin_dir};
use cni_runner::Network;
use serde_json::json;

use self::host_port::{PORTS, SERVER, answered, closed};
use self::leftovers::assert_nothing_left;

#[path = "common/host_port.rs"]
mod host_port;
#[path = "common/leftovers.rs"]
mod leftovers;

const PLUGINS: [&str; 5] = ["bandwidth", "bridge", "host-local", "loopback", "portmap"];

/// Runs `install.sh` on the node and returns its standard output and standard error.
fn install(node: &Node, arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../install.sh");
    let output = node.exec(Command::new(script).args(arguments)).unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

#[test]
fn host_ports_survive_the_rollback_and_the_go_plugins_remove_them() {
    let node = Node::new().unwrap();
    let client = node.outside_client("192.0.2.0/24").unwrap();
    let bin = tempfile::tempdir().unwrap();
    for name in PLUGINS {
        fs::copy(go_bin_dir().unwrap().join(name), bin.path().join(name)).unwrap();
    }
    let bin = bin.path().to_str().unwrap();
    install(&node, &["--bin-dir", bin, "--from", bin_dir().unwrap().to_str().unwrap()]);

    let network = Network::from_value(&json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}))
    .unwrap();
    let before = Snapshot::take(&node).unwrap();
    let pod = node.pod("one").unwrap();
    let mapping = |(host, container): (u16, u16)| json!({"hostPort": host, "containerPort": container, "protocol": "tcp"});
    let rates = json!({"ingressRate": 100_000_000, "ingressBurst": 10_000_000});
    let attachment = pod
        .attachment("eth0")
        .with_capability("portMappings", json!([mapping(PORTS), mapping((8081, 81))]))
        .with_capability("bandwidth", rates);
    let runtime = node.runtime([bin]);
    runtime.add(&network, &attachment).unwrap();
    let mut server = Command::new(SERVER[0]);
    server.args(&SERVER[1..]);
    let _server = pod.spawn(server).unwrap();
    answered(&client, client.node_address()).unwrap();
    let listener = pod.run(|| TcpListener::bind("0.0.0.0:81")).unwrap().unwrap();
    let caller = client.run(|| TcpStream::connect((client.node_address(), 8081))).unwrap().unwrap();
    let (called, _) = listener.accept().unwrap();
    let goes_on = || {
        let mut byte = [0];
        (&caller).write_all(&[7]).unwrap();
        (&called).read_exact(&mut byte).unwrap();
        (&called).write_all(&byte).unwrap();
        (&caller).read_exact(&mut byte).unwrap();
        assert_eq!(byte, [7]);
    };
    for side in [&caller, &called] {
        side.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    goes_on();
    let ruleset = || node.sh("nft list ruleset").unwrap();
    assert!(ruleset().contains("table inet cni_portmap") && !ruleset().contains("CNI-DN-"));

    let asked = install(&node, &["--bin-dir", bin, "--rollback", "--dry-run"]);
    let handed = "hand over container one (interface eth0 on network pods): 2 host ports";
    assert!(asked.contains(&format!("would {handed}")), "{asked}");
    assert!(ruleset().contains("table inet cni_portmap"));
    let said = install(&node, &["--bin-dir", bin, "--rollback"]);
    assert!(said.contains(handed), "{said}");
    assert!(!ruleset().contains("cni_portmap") && ruleset().contains("CNI-DN-"), "{}", ruleset());
    let is_go = |name: &str| {
        fs::read(Path::new(bin).join(name)).unwrap() == fs::read(go_bin_dir().unwrap().join(name)).unwrap()
    };
    assert!(PLUGINS.into_iter().all(is_go));
    goes_on();
    answered(&client, client.node_address()).unwrap();

    runtime.del(&network, &attachment).unwrap();
    closed(&client, client.node_address()).unwrap();
    pod.delete().unwrap();
    // Not even host-local's index, which the Go plugins do not know.
    assert_nothing_left(&node, &before, &["cni0"], &[]).unwrap();
}

//! Debian's podman with its CNI backend as a caller of plugins.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use cni_lab::{Node, Place as _, Podman, Snapshot, bin_dir, go_bin_dir};
use ferrule_kit::fold::{CHAIN, fold};
use serde_json::{Value, json};

use self::host_port::{PORTS, SERVER, answered, closed};
use self::leftovers::assert_nothing_left;

#[path = "common/host_port.rs"]
mod host_port;
#[path = "common/leftovers.rs"]
mod leftovers;

fn network(ranges: &[&str]) -> Value {
    let ranges: Vec<_> = ranges.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({
        "name": "pods", "cniVersion": "0.4.0", "plugins": [{
            "type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]})
}

fn podman_adds_and_deletes_containers(plugins: &Path, network: &Value) -> anyhow::Result<()> {
    let node = Node::new()?;
    let client = node.outside_client("192.0.2.0/24")?;
    let before = Snapshot::take(&node)?;
    let podman = Podman::start(&node, plugins, Some(network))?;

    podman.run("one", &["--publish", &format!("{}:{}", PORTS.0, PORTS.1)])?;
    let addresses = ["--ip", "10.1.0.77", "--mac-address", "92:d0:c6:0a:29:33"];
    let is_folded = network["plugins"][0]["type"] == CHAIN;
    if is_folded {
        // podman replaces the capabilities of the first plugin by "ips". Host ports would be lost without a word.
        let error = format!("{:#}", podman.run("refused", &addresses).unwrap_err());
        assert!(error.contains("which the chain's own capabilities lack"), "{error}");
        podman.podman(&["rm", "--force", "--time", "0", "refused"])?;
    }
    let (wanted, address) =
        if is_folded { (&addresses[2..], "10.1.0.3") } else { (&addresses[..], "10.1.0.77") };
    podman.run("two", wanted)?;
    for (container, address) in [("one", "10.1.0.2"), ("two", address)] {
        let seen = podman.sh(container, "ip address show lo; ip address show eth0; ip route")?;
        assert!(seen.contains("LOOPBACK,UP"), "{seen}");
        assert!(seen.contains(&format!("inet {address}/24 ")), "{seen}");
        assert!(seen.contains("default via 10.1.0.1 dev eth0"), "{seen}");
        podman.sh(container, "ping -c 1 -W 5 10.1.0.1")?;
    }
    assert!(podman.sh("two", "ip link show eth0")?.contains("92:d0:c6:0a:29:33"));
    podman.sh("two", "ping -c 1 -W 5 10.1.0.2")?;

    podman.podman(&[["exec", "--detach", "one"].as_slice(), &SERVER].concat())?;
    answered(&client, client.node_address())?;

    podman.podman(&["restart", "--time", "0", "two"])?;
    podman.sh("two", "ping -c 1 -W 5 10.1.0.2")?;
    podman.podman(&["rm", "--force", "--time", "0", "one", "two"])?;
    closed(&client, client.node_address())?;
    assert_eq!(node.list_dir("/run/netns")?, ["client0"]);
    assert_nothing_left(&node, &before, &["cni-podman0"], &[])
}

#[test]
fn the_go_plugins_under_podman() {
    podman_adds_and_deletes_containers(&go_bin_dir().unwrap(), &network(&["10.1.0.0/24"])).unwrap();
}

#[test]
fn our_plugins_under_podman() {
    podman_adds_and_deletes_containers(&bin_dir().unwrap(), &network(&["10.1.0.0/24"])).unwrap();
}

#[test]
fn our_plugins_in_one_chain_under_podman() {
    let network = network(&["10.1.0.0/24", "fd00:1::/64"]);
    let folded = fold(network.as_object().unwrap()).unwrap();
    podman_adds_and_deletes_containers(&bin_dir().unwrap(), &folded.into()).unwrap();
}

/// `bridge`, `portmap`, `firewall` and `tuning`, as podman configures them, on a node that drops forwarded packets. One
/// container has two networks, and podman starts it again after a crash.
#[test]
fn podmans_own_networks_need_no_other_plugins() -> anyhow::Result<()> {
    let node = Node::new()?;
    let client = node.outside_client("192.0.2.0/24")?;
    node.tool("iptables", &["--policy", "FORWARD", "DROP"])?;
    let podman = Podman::start(&node, &bin_dir()?, None)?;
    let network = podman.podman(&["network", "inspect", "podman"])?;
    assert!(network.contains("10.88.0.0/16"), "{network}");
    podman.podman(&["network", "create", "--subnet", "10.99.0.0/24", "second"])?;
    let both = ["--network", "podman", "--network", "second"];
    // The first container makes what all containers share.
    podman.run("first", &both)?;
    podman.podman(&["rm", "--force", "--time", "0", "first"])?;
    let before = Snapshot::take(&node)?;

    let ports = format!("{}:{}", PORTS.0, PORTS.1);
    podman.run("one", &[both.as_slice(), &["--publish", &ports, "--restart", "always"]].concat())?;
    podman.run("two", &[])?;
    let is_served = || {
        podman.sh("one", "ping -c 1 -W 5 10.88.0.1 && ping -c 1 -W 5 10.99.0.1")?;
        podman.podman(&[["exec", "--detach", "one"].as_slice(), &SERVER].concat())?;
        answered(&client, client.node_address())
    };
    is_served()?;
    podman.sh("two", "ping -c 1 -W 5 10.88.0.3")?;
    podman.sh("two", &format!("ping -c 1 -W 5 {}", client.address()))?;
    podman.crash("one")?;
    is_served()?;

    podman.podman(&["rm", "--force", "--time", "0", "one", "two"])?;
    closed(&client, client.node_address())?;
    assert_nothing_left(&node, &before, &["cni-podman0", "cni-podman1"], &[])
}

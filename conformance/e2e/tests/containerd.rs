//! Debian's containerd as a caller of plugins.

use std::fs;
use std::path::Path;

use cni_lab::{Containerd, Node, Place as _, Snapshot, TIMEOUT, bin_dir, eventually, go_bin_dir};
use serde_json::{Value, json};

use self::host_port::{PORTS, SERVER, answered, closed};
use self::leftovers::assert_nothing_left;

#[path = "common/host_port.rs"]
mod host_port;
#[path = "common/leftovers.rs"]
mod leftovers;

fn network() -> Value {
    json!({
        "name": "pods", "cniVersion": "1.0.0", "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]})
}

/// Expects, in a container or a sandbox: the address on eth0, `lo` up, the default route, and a ping reply of
/// the gateway.
fn assert_connected(address: &str, sh: impl Fn(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let seen = sh("ip -4 address show eth0")?;
    assert!(seen.contains(&format!("inet {address}/24 ")), "{seen}");
    let seen = sh("ip -4 address show lo")?;
    assert!(seen.contains("LOOPBACK,UP") && seen.contains("inet 127.0.0.1/8"), "{seen}");
    assert_eq!(sh("ip route show default")?.trim(), "default via 10.1.0.1 dev eth0");
    sh("ping -c 1 -W 5 10.1.0.1")?;
    Ok(())
}

fn assert_reservations(node: &Node, expected: &[&str]) -> anyhow::Result<()> {
    let mut names = node.list_dir("/var/lib/cni/networks/pods")?;
    names.retain(|name| name != "lock" && name != "last_reserved_ip.0");
    assert_eq!(names, expected);
    Ok(())
}

fn ctr_adds_and_deletes_containers(plugins: &Path, known: &[&str]) -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let containerd = Containerd::start(&node, plugins, &network())?;

    let one = containerd.run("one", &["/bin/sleep", "1000"])?;
    assert_connected("10.1.0.2", |script| containerd.sh("one", script))?;
    let two = containerd.run("two", &["/bin/sleep", "1000"])?;
    assert_connected("10.1.0.3", |script| containerd.sh("two", script))?;
    containerd.sh("two", "ping -c 1 -W 5 10.1.0.2")?;
    assert_reservations(&node, &["10.1.0.2", "10.1.0.3"])?;
    let during = before.diff(&Snapshot::take(&node)?).to_lowercase();
    assert!(during.contains("masquerade") && during.contains("10.1.0.3"), "{during}");

    containerd.kill("one", one)?;
    assert_reservations(&node, &["10.1.0.3"])?;
    containerd.sh("two", "ping -c 1 -W 5 10.1.0.1")?;
    containerd.kill("two", two)?;
    assert_nothing_left(&node, &before, &["cni0"], known)?;
    assert_eq!(containerd.ctr(&["container", "list", "--quiet"])?, "");
    Ok(())
}

fn cri_adds_and_deletes_sandboxes(plugins: &Path) -> anyhow::Result<()> {
    let node = Node::new()?;
    let client = node.outside_client("192.0.2.0/24")?;
    let before = Snapshot::take(&node)?;
    let containerd = Containerd::start(&node, plugins, &network())?;
    containerd.import_pause_image()?;

    let one = containerd.run_sandbox("web-0", &[PORTS])?;
    assert_eq!(containerd.sandbox_ip(&one)?, "10.1.0.2");
    assert_connected("10.1.0.2", |script| containerd.sandbox_sh("pods", &one, script))?;
    let two = containerd.run_sandbox("web-1", &[])?;
    assert_connected("10.1.0.3", |script| containerd.sandbox_sh("pods", &two, script))?;
    containerd.sandbox_sh("pods", &two, "ping -c 1 -W 5 10.1.0.2")?;
    // Only CRI calls the loopback plugin.
    let cached = node.list_dir("/var/lib/cni/results")?;
    assert!(cached.contains(&format!("cni-loopback-{one}-lo")), "{cached:?}");

    let server = containerd.sandbox_spawn("pods", &one, &SERVER)?;
    answered(&client, client.node_address())?;
    drop(server);

    containerd.stop_sandbox(&one)?;
    closed(&client, client.node_address())?;
    assert_reservations(&node, &["10.1.0.3"])?;
    containerd.remove_sandbox(&one)?;
    // RemovePodSandbox without StopPodSandbox does both.
    containerd.remove_sandbox(&two)?;
    assert_nothing_left(&node, &before, &["cni0"], &[])?;
    assert_eq!(node.list_dir("/run/netns")?, ["client0"]);
    Ok(())
}

#[test]
fn the_go_plugins_under_ctr() {
    // ctr calls DEL without a namespace; the Go bridge then leaves its masquerading rules (plugins#810).
    ctr_adds_and_deletes_containers(&go_bin_dir().unwrap(), &["CNI-"]).unwrap();
}

#[test]
fn our_plugins_under_ctr() {
    ctr_adds_and_deletes_containers(&bin_dir().unwrap(), &[]).unwrap();
}

#[test]
fn the_go_plugins_under_cri() {
    cri_adds_and_deletes_sandboxes(&go_bin_dir().unwrap()).unwrap();
}

#[test]
fn our_plugins_under_cri() {
    cri_adds_and_deletes_sandboxes(&bin_dir().unwrap()).unwrap();
}

#[test]
fn nothing_outlives_containerd() {
    let node = Node::new().unwrap();
    let containerd = Containerd::start(&node, &go_bin_dir().unwrap(), &network()).unwrap();
    // A unique argument identifies the container's process among all processes of the machine.
    let seconds = format!("{}.5", std::process::id());
    let _one = containerd.run("one", &["/bin/sleep", &seconds]).unwrap();
    let marker = format!("/bin/sleep\0{seconds}\0");
    let lives = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.any(|line| line == marker)
    };
    // containerd reports a task as running just before the task executes its command.
    assert!(eventually(TIMEOUT, lives));
    let groups = || containerd_groups(&node).unwrap();
    assert_ne!(groups(), 0);
    drop(containerd);
    assert!(!lives());
    assert_eq!(groups(), 0);
}

/// Counts the control groups that this process has made for containers named `one`.
fn containerd_groups(node: &Node) -> anyhow::Result<usize> {
    let name = format!("*/ferrule-test-{}-*/one", std::process::id());
    Ok(node.tool("find", &["/sys/fs/cgroup", "-path", &name])?.lines().count())
}

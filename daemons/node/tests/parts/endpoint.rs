//! The process that makes the health endpoint is killed.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use cni_lab::{Node, Place as _, bin_dir};
use serde_json::{Value, json};

const STATE: &str = "/run/ferrule/node";
const STORE: &str = "/var/lib/cni/networks/pods";
/// System calls of the process itself whose effect outlives it, and how many of each are hit at most.
const VISIBLE: [(&str, usize); 8] = [
    ("mkdir", 1),
    ("rename", 2),
    ("renameat2", 2),
    ("mount", 2),
    ("setns", 1),
    ("vfork,clone,clone3", 3),
    ("unlink", 3),
    ("umount2", 1),
];

fn write(node: &Node, root: &Value, wanted: &Value) {
    let request = json!({"state": STATE, "plugins": bin_dir().unwrap(), "root": root, "wanted": wanted});
    node.write_file("/run/request", &request.to_string()).unwrap();
}

fn wanted() -> Value {
    json!({"networks": ["10.9.0.0/24", "fd00:9::/64"], "store": STORE, "conflist": {
        "cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "br0", "isGateway": true, "mtu": 1450,
            "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}})
}

/// Runs the process, perhaps under strace. `None` if it was killed.
fn run(node: &Node, wrapper: &str, wanted: &Value) -> Option<Value> {
    write(node, &Value::Null, wanted);
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_ferrule-node");
    command.args(["-c", &format!("exec {wrapper} {program} endpoint </run/request")]).stderr(Stdio::null());
    let output = node.exec(&mut command).unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

/// What an endpoint leaves on the node.
fn objects(node: &Node) -> BTreeSet<String> {
    let script = format!(
        "ls -A /run/netns | sed 's/^/namespace /'; ls -A {STATE} 2>/dev/null | sed 's/^/state /'
        ls -A {STORE} 2>/dev/null | grep '[.:]' | sed 's/^/address /'; ls -A /var/lib/cni/networks 2>/dev/null | sed 's/^/store /'
        ip -o link show type veth | sed 's/^[0-9]*: .*/link/' | sort | uniq -c"
    );
    node.sh(&script).unwrap().lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_kill_at_any_point_is_healed_by_the_next_run() {
    let node = Node::new().unwrap();
    let wanted = wanted();
    let made = run(&node, "", &wanted).unwrap();
    assert_eq!(made["made"]["places"][0]["address"], "10.9.0.254", "{made}");
    let sound = objects(&node);
    assert!(sound.contains("address fd00:9::ffff:ffff:ffff:ffff") && sound.contains("2 link"), "{sound:#?}");
    assert_eq!(run(&node, "", &wanted), Some(made.clone()), "adopted");
    assert_eq!(run(&node, "", &Value::Null), Some(json!({"removed": true})));
    let none = objects(&node);
    assert!(none.iter().all(|line| line.starts_with("store ") || line == "state health.lock"), "{none:#?}");
    let mut hit = 0;
    for (calls, count) in VISIBLE {
        for nth in 1..=count {
            let strace =
                format!("strace -qq -o /dev/null -e trace={calls} -e inject={calls}:signal=KILL:when={nth}");
            // One that makes it, and one that removes it.
            for wanted in [&wanted, &Value::Null] {
                hit += usize::from(run(&node, &strace, wanted).is_none());
            }
            assert_eq!(run(&node, "", &wanted), Some(made.clone()), "{calls} {nth}");
            assert_eq!(objects(&node), sound, "{calls} {nth}");
            run(&node, "", &Value::Null).unwrap();
            assert_eq!(objects(&node), none, "{calls} {nth}");
        }
    }
    assert!(hit > 10, "{hit} kills");
}

/// In a container with the process IDs of the node: everything happens where the node's first process sees it.
#[test]
fn a_container_makes_it_with_the_nodes_mounts() {
    let node = Node::new().unwrap();
    write(&node, &json!("/proc/1/root"), &wanted());
    let program = env!("CARGO_BIN_EXE_ferrule-node");
    let inside = format!(
        "exec 3</run/request; mount -t tmpfs none /run/netns; mount -t tmpfs none /var/lib/cni; {program} endpoint <&3; ls -A /run/netns /var/lib/cni"
    );
    let said = node
        .sh(&format!("unshare --fork --pid --mount-proc sh -c \"unshare --mount sh -c '{inside}'; true\""))
        .unwrap();
    assert!(said.starts_with("{\"made\"") && said.ends_with("}/run/netns:\n\n/var/lib/cni:\n"), "{said}");
    // unshare's own mount namespace is the first process's. It has ended, and its private mounts with it; the store has stayed.
    assert!(objects(&node).contains("address 10.9.0.254"), "{:?}", objects(&node));
}

//! Processes and round trips of each verb, and concurrent calls.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::{Node, Place as _, Pod, TIMEOUT, eventually};
use cni_runner::Exec;
use common::{
    BANDWIDTH, Bins, By, CONTAINERD, CRIO, attached, both, call, config, ifbs, limits, network, shaped,
    snapshot, succeed,
};
use serde_json::Value;
use serde_json::json;

/// No verb starts a process.
#[test]
fn no_helper_processes() {
    let (node, pod, result) = attached("one");
    let config = config("1.1.0", both(10_000_000, CRIO), Some(&result));
    for verb in ["ADD", "STATUS", "GC", "DEL", "VERSION"] {
        let calls = trace(&node, verb, &pod, &config);
        let started = calls
            .lines()
            .filter(|line| ["execve(", "fork", "vfork", "clone"].iter().any(|c| line.contains(c)));
        assert_eq!(started.count(), 1, "{verb}:\n{calls}");
    }
}

/// The number of netlink round trips of each verb.
#[test]
fn round_trips() {
    let trips = |calls: &str| {
        calls.lines().filter(|line| line.contains("sendto(") || line.contains("sendmsg(")).count()
    };
    for (name, limits, add, check, del) in [
        ("towards the container", limits((10_000_000, CRIO), (0, 0)), 3, 2, 3),
        ("from the container", limits((0, 0), (10_000_000, CRIO)), 4, 4, 4),
        ("both", both(10_000_000, CRIO), 4, 4, 4),
    ] {
        let (node, pod, result) = attached("one");
        let config = config("1.1.0", limits, Some(&result));
        let counted = trips(&trace(&node, "ADD", &pod, &config));
        let added =
            succeed(&node, &call(By::Us, "ADD", &pod.attachment("eth0"), &config)).document().unwrap();
        let checked = trips(&trace(
            &node,
            "CHECK",
            &pod,
            &self::config("1.1.0", config["runtimeConfig"]["bandwidth"].clone(), Some(&added)),
        ));
        let deleted = trips(&trace(&node, "DEL", &pod, &config));
        println!("round trips, {name}: ADD {counted}, CHECK {checked}, DEL {deleted}");
        assert_eq!((counted, checked, deleted), (add, check, del), "{name}");
    }
    let (node, pod, result) = attached("one");
    let config = config("1.1.0", both(10_000_000, CRIO), Some(&result));
    let [gc, status] = ["GC", "STATUS"].map(|verb| trips(&trace(&node, verb, &pod, &config)));
    println!("round trips: GC with nothing to do {gc}, STATUS {status}");
    assert_eq!((gc, status), (1, 2));
}

/// Runs one call under strace. Returns its system calls that start processes or send to sockets.
fn trace(node: &Node, verb: &str, pod: &Pod, config: &Value) -> String {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let script = dir.path().join("traced");
    let text = format!(
        "#!/bin/sh\nexec strace -f -q -e signal=none -e trace=execve,fork,vfork,clone,clone3,sendto,sendmsg -o {} {BANDWIDTH}\n",
        log.display()
    );
    std::fs::write(&script, text).unwrap();
    std::os::unix::fs::PermissionsExt::set_mode(
        &mut std::fs::metadata(&script).unwrap().permissions(),
        0o755,
    );
    node.sh(&format!("chmod 755 {}", script.display())).unwrap();
    let exec = Exec::new(&script, verb).attachment(&pod.attachment("eth0")).stdin(config.to_string());
    succeed(node, &exec);
    std::fs::read_to_string(&log).unwrap()
}

#[test]
fn thirty_two_concurrent_pods_leave_nothing() {
    let node = Node::new().unwrap();
    let bins = Bins::new(By::Us, By::Us);
    let network = network("1.0.0", json!({}));
    let pods: Vec<Pod> = (0..32).map(|n| node.pod(&format!("pod{n}")).unwrap()).collect();
    let before = snapshot(&node);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| {
                    let attachment = shaped(pod, "eth0", both(10_000_000, CONTAINERD));
                    bins.runtime(&node).add(&network, &attachment).unwrap();
                });
            }
        });
        assert_eq!(ifbs(&node).len(), 32);
        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| {
                    let attachment = shaped(pod, "eth0", both(10_000_000, CONTAINERD));
                    bins.runtime(&node).check(&network, &attachment).unwrap();
                    bins.runtime(&node).del(&network, &attachment).unwrap();
                });
            }
        });
        assert!(
            eventually(TIMEOUT, || before.diff(&snapshot(&node)).is_empty()),
            "{}",
            before.diff(&snapshot(&node))
        );
    }
}

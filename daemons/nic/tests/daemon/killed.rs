//! The daemon is killed before each system call that other processes can see, from its start to an allocation and a moved
//! device. The next daemon registers and knows where the device is. Needs strace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use ferrule_fake_kubelet::{Knobs, Kubelet};

use crate::lab::{Lab, NIC};

const VISIBLE: &str = "bind,listen,connect,accept4,writev,write,sendto,unlink,rename,inotify_add_watch";

fn counts(log: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in log.lines() {
        let Some((_, call)) = line.split_once(' ') else { continue };
        let Some((name, _)) = call.trim_start().split_once('(') else { continue };
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

/// What a pod does: an allocation, and a device that goes into it and comes back as a new one.
fn pod(lab: &Lab, kubelet: &Kubelet, number: usize) {
    let _ = kubelet.allocate(NIC, &["eth1"]);
    let pod = lab.node.pod(&format!("pod{number}")).unwrap();
    lab.sh(&format!("ip link set eth1 netns pod{number}"));
    pod.delete().unwrap();
    lab.until("the peer is gone", || cni_lab::Place::sh(&lab.node, "ip link show peer1").is_err());
    lab.sh("ip link add eth1 type veth peer name peer1");
}

#[test]
fn a_daemon_that_is_killed_at_any_point() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs::new());
    let trace = lab.path("trace");
    let strace = format!("strace -D -f -qq -o {} -e trace={VISIBLE}", trace.display());
    let mut traced = lab.node_daemon(&strace);
    lab.allocatable(&kubelet, 2);
    pod(&lab, &kubelet, 0);
    lab.lists(&kubelet, "eth1 eth2");
    traced.end("TERM");
    let calls = counts(&fs::read_to_string(&trace).unwrap());
    assert!(calls.len() >= 6, "strace saw nothing: {calls:?}");
    let (mut number, mut hit) = (0, BTreeSet::new());
    for (name, count) in &calls {
        // The calls of one kind repeat themselves: the first ones, and the last one.
        let points = (1..=6.min(*count)).chain((*count > 6).then_some(*count));
        for nth in points {
            number += 1;
            let strace = format!(
                "strace -D -f -qq -o /dev/null -e trace={name} -e inject={name}:signal=KILL:when={nth}"
            );
            let mut victim = lab.node_daemon(&strace);
            lab.until("registered or killed", || kubelet.allocatable(NIC) == 2 || !victim.is_running());
            if kubelet.allocatable(NIC) == 2 {
                pod(&lab, &kubelet, number);
            }
            // Its end has kill points too. A process that a signal has killed has no exit status.
            hit.extend(victim.end("TERM").is_none().then(|| name.clone()));
            let mut next = lab.daemon("");
            lab.until(&format!("registered after a kill before {name} {nth}"), || {
                kubelet.allocatable(NIC) == 2
            });
            lab.lists(&kubelet, "eth1 eth2");
            next.end("TERM");
            lab.allocatable(&kubelet, 0);
        }
    }
    assert!(hit.iter().eq(calls.keys()), "killed only before {hit:?}");
}

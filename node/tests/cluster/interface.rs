//! The plugin that makes the pods' interfaces: ptp, or the bridge while bridged pods run.

use std::process::Command;

use cni_lab::{Background, Place as _};
use serde_json::Value;

use crate::lab::{Cluster, wait};
use crate::member::{Member, Running};

const BRIDGE: &str = "ferrule0";

/// So that no daemon loads a module into the kernel of this machine.
const NO_MODPROBE: &str = "env PATH=/none";

/// The daemon of a node whose pods outlive it.
fn daemon(member: &Member, arguments: &str) -> Background {
    member.node.spawn(member.command(NO_MODPROBE, arguments)).unwrap()
}

fn end(mut daemon: Background) {
    Command::new("kill").arg(daemon.id().to_string()).status().unwrap();
    daemon.child().wait().unwrap();
}

fn plugin(member: &Member) -> String {
    member
        .conflist()
        .map_or_else(String::new, |value| value["plugins"][0]["type"].as_str().unwrap().to_owned())
}

fn becomes(member: &Member, expected: &str) {
    wait(
        &format!("{expected} on {}:\n{}", member.name, member.log()),
        || plugin(member),
        |plugin| plugin == expected,
    );
}

/// The notes of `status` about the conflist.
fn notes(member: &Member) -> String {
    let output = member.run("status --json --no-probe");
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    status["conflist"]["notes"].to_string()
}

#[test]
fn a_node_keeps_the_bridge_until_its_last_bridged_pod_is_gone() {
    let mut cluster = Cluster::new();
    cluster.b.start("");
    cluster.c.start("");
    let (a, b) = (&cluster.a, &cluster.b);
    let before = daemon(a, "--main bridge");
    cluster.settled();
    becomes(b, "ptp");
    let (old, two) = (a.pod("old"), b.pod("two"));
    assert!(a.node_has(BRIDGE) && !b.node_has(BRIDGE));
    // A cluster with both forms.
    old.reaches(&two);
    two.reaches(&old);
    end(before);

    let today = daemon(a, "");
    let address = old.addresses[0].to_string();
    let said = wait("a note about the pod", || notes(a), |notes| notes.contains(&address));
    assert!(said.contains(&old.container_id()) && said.contains("kubectl drain"), "{said}");
    let new = a.pod("new");
    assert_eq!(plugin(a), "bridge");
    new.reaches(&old);
    new.reaches(&two);
    new.end();
    old.end();
    becomes(a, "ptp");
    wait("no bridge", || a.node_has(BRIDGE), |has| !has);
    wait("no notes", || notes(a), |notes| notes == "[]");
    let pods = [a.pod("one"), a.pod("three")];
    pods[0].reaches(&pods[1]);
    pods[0].reaches(&two);
    two.reaches(&pods[0]);
    end(today);

    // An older release comes back, and then today's: the pods of ptp go on, and the node says what does not work.
    let older = daemon(a, "--main bridge");
    becomes(a, "bridge");
    let bridged = a.pod("bridged");
    pods[1].reaches(&pods[0]);
    for pod in [&pods[0], &bridged] {
        pod.reaches(&two);
        two.reaches(pod);
    }
    end(older);
    let _again = daemon(a, "");
    wait("a note about both kinds", || notes(a), |notes| notes.contains("do not reach each other"));
    assert_eq!(plugin(a), "bridge");
    bridged.end();
    becomes(a, "ptp");
    wait("no bridge", || a.node_has(BRIDGE), |has| !has);
    pods[0].reaches(&pods[1]);
    two.reaches(&pods[1]);
    pods.into_iter().for_each(Running::end);
}

#[test]
fn a_bridge_that_others_use_stays() {
    let mut cluster = Cluster::new();
    let a = &cluster.a;
    a.sh(&format!(
        "ip link add {BRIDGE} type bridge; ip link set {BRIDGE} up; ip addr add 192.168.7.20/24 dev {BRIDGE}"
    ));
    cluster.a.start("");
    let a = &cluster.a;
    becomes(a, "ptp");
    let pod = a.pod("one");
    pod.end();
    assert!(a.node_has(BRIDGE));
    // The address of a gateway of before, and no port.
    a.sh(&format!("ip addr flush dev {BRIDGE}; ip addr add 10.244.99.1/24 dev {BRIDGE}; ip addr add 203.0.113.5/32 dev lo"));
    wait("no bridge", || a.node_has(BRIDGE), |has| !has);
}

/// Services of pods on one bridge need br_netfilter. Whether the kernel has it is up to the machine.
#[test]
fn a_bridge_needs_br_netfilter() {
    let mut cluster = Cluster::new();
    cluster.a.start_under(NO_MODPROBE, "--main bridge");
    let a = &cluster.a;
    becomes(a, "bridge");
    let has_module = a.node.sh("cat /proc/sys/net/bridge/bridge-nf-call-iptables").is_ok();
    if has_module {
        wait(
            "set",
            || a.node.sh("cat /proc/sys/net/bridge/bridge-nf-call-ip*tables").unwrap(),
            |text| text == "1\n1\n",
        );
    } else {
        let said = wait("a note", || notes(a), |notes| notes.contains("bridge-nf-call-iptables"));
        assert!(said.contains("times out") && said.contains("modprobe br_netfilter"), "{said}");
        a.until("one line", || a.lines("bridge-nf-call-iptables").len() == 1);
    }
    // The node is degraded: pods start.
    a.pod("one").end();
}

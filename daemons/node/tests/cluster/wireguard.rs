//! WireGuard between all nodes. The kernel of a build machine may lack it.

use std::fs;
use std::process::Command;

use cni_lab::{Place as _, kernel_module};
use serde_json::json;

use crate::lab::{Cluster, wait};
use crate::member::{Member, Running};

const ANNOTATION: &str = "ferrule.dev/wireguard-key";
const KEY: &str = "/run/wireguard.key";

/// The public key in the Node object.
fn announced(cluster: &Cluster, member: &Member) -> Option<String> {
    let object = cluster.store.get(&crate::lab::node_path(member.name))?;
    object["metadata"]["annotations"][ANNOTATION].as_str().map(str::to_owned)
}

/// The routes to the other nodes, all through the device.
fn has_ways(cluster: &Cluster, member: &Member) {
    let others = cluster.members().into_iter().filter(|other| other.name != member.name);
    let ways: Vec<String> =
        others.flat_map(Member::pod_cidrs).map(|cidr| format!("{cidr} via nothing dev ferrule.wg")).collect();
    member.has_routes(&ways);
}

fn pods_reach_each_other(cluster: &Cluster) {
    let pods = [cluster.a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three")];
    for from in &pods {
        pods.iter().filter(|to| to.pod.name() != from.pod.name()).for_each(|to| from.reaches(to));
    }
    pods.into_iter().for_each(Running::end);
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn all_packets_between_pods_of_two_nodes_are_encrypted() {
    kernel_module("wireguard");
    let mut cluster = Cluster::new();
    cluster.server.faults(|faults| {
        let rules = faults.rules.as_mut().unwrap();
        rules.push(json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}));
    });
    for member in cluster.members_mut() {
        member.start(&format!("--mode wireguard --wireguard-key {KEY}"));
    }
    for member in cluster.members() {
        member.until("a key in the annotation", || announced(&cluster, member).is_some());
        assert_eq!(
            member.sh("wg show ferrule.wg public-key").trim_end(),
            announced(&cluster, member).unwrap()
        );
        assert_eq!(member.sh(&format!("stat -c %a {KEY}")), "600\n");
        has_ways(&cluster, member);
        member.until("a conflist", || member.conflist().is_some());
    }
    // The hub is the switch and the router: it sees all packets between nodes.
    let seen = tempfile::NamedTempFile::new().unwrap();
    let mut tcpdump = Command::new("sh");
    let file = seen.path().display();
    tcpdump.args(["-c", &format!("exec tcpdump -i any -nn -l >{file} 2>{file}.said")]);
    let tcpdump = cluster.hub.spawn(tcpdump).unwrap();
    wait(
        "tcpdump",
        || fs::read_to_string(format!("{file}.said")).unwrap_or_default(),
        |said| said.contains("listening"),
    );

    pods_reach_each_other(&cluster);
    let seen = wait("packets", || fs::read_to_string(seen.path()).unwrap(), |seen| seen.contains("51871"));
    drop(tcpdump);
    fs::remove_file(format!("{file}.said")).unwrap();
    let open: Vec<&str> =
        seen.lines().filter(|line| line.contains(" 10.244.") || line.contains(" fd00:244:")).collect();
    assert_eq!(open, Vec::<&str>::new());

    // A node that comes back with another key, for example on another disk.
    assert_eq!(cluster.b.end("TERM"), Some(0));
    cluster.b.sh(&format!("rm {KEY}"));
    let former = announced(&cluster, &cluster.b).unwrap();
    cluster.b.start(&format!("--mode wireguard --wireguard-key {KEY}"));
    cluster.b.until("a new key", || announced(&cluster, &cluster.b).is_some_and(|key| key != former));
    pods_reach_each_other(&cluster);

    // Back to the default mode.
    for member in cluster.members_mut() {
        assert_eq!(member.end("TERM"), Some(0));
        member.start("");
    }
    cluster.settled();
    for member in cluster.members() {
        member.until("no WireGuard device", || !member.node_has("ferrule.wg"));
    }
    pods_reach_each_other(&cluster);
}

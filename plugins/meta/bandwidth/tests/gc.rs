//! GC after a lost DEL, and STATUS.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::{Node, Place as _, Snapshot, TIMEOUT, eventually};
use cni_runner::Exec;
use cni_runner::ValidAttachment;
use common::{
    BANDWIDTH, Bins, By, CONTAINERD, CRIO, NETWORK, both, bridge_only, call, config, ifbs, network, owner,
    shaped, succeed,
};
use ferrule_bandwidth::owner::shared_name;
use serde_json::Value;
use serde_json::json;

fn gc(node: &Node, network: &str, valid: &[(&str, &str)]) {
    let list: Vec<Value> =
        valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect();
    let config = json!({"cniVersion": "1.1.0", "name": network, "type": "bandwidth",
        "cni.dev/valid-attachments": list, "cni.dev/attachments": list});
    let exec = Exec::new(BANDWIDTH, "GC").stdin(config.to_string());
    assert_eq!(succeed(node, &exec).stdout_text(), "");
}

#[test]
fn gc_removes_ifbs_after_a_lost_del() {
    let node = Node::new().unwrap();
    let bridge = Bins::new(By::Go, By::Us);
    let add = |name: &str, by: By| {
        let pod = node.pod(name).unwrap();
        let result = bridge.runtime(&node).add(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
        succeed(
            &node,
            &call(
                by,
                "ADD",
                &pod.attachment("eth0"),
                &config("1.0.0", both(10_000_000, CRIO), Some(&result)),
            ),
        );
        pod
    };
    let alive = add("alive", By::Us);
    let alive_by_go = add("alive-go", By::Go);
    let unlisted_by_go = add("unlisted-go", By::Go);
    let lost = [add("lost", By::Us), add("lost-go", By::Go)];
    for pod in &lost {
        pod.delete().unwrap();
    }
    // GC must not touch another plugin's IFB, nor one whose name has our form but whose alias does not.
    node.sh("ip link add ifb7 type ifb; ip link add bwp0123456789ab type ifb; ip link set bwp0123456789ab alias mine").unwrap();
    assert_eq!(ifbs(&node).len(), 7);
    // GC of another network removes an unused IFB without an alias, and keeps IFBs whose alias names another
    // network.
    let with_alias = shared_name(&owner("lost", "eth0"));
    let wait = || {
        eventually(TIMEOUT, || {
            !node.sh("ip -o link show type veth").unwrap().contains("nobody")
                && node.sh("ip -o link show type veth").unwrap().lines().count() == 3
        })
    };
    assert!(wait());
    gc(&node, "other-network", &[]);
    assert_eq!(ifbs(&node).len(), 6);
    assert!(ifbs(&node).contains(&with_alias));
    gc(&node, NETWORK, &[("alive", "eth0"), ("alive-go", "eth0"), ("lost", "net1")]);
    let remaining = ifbs(&node);
    assert!(!remaining.contains(&with_alias), "{remaining:?}");
    assert_eq!(remaining.len(), 5, "{remaining:?}");
    for pod in [&alive, &alive_by_go, &unlisted_by_go] {
        assert!(remaining.contains(&shared_name(&owner(pod.name(), "eth0"))));
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
    }
    // Without valid attachments, GC removes our IFBs. It keeps an IFB of the reference that a running
    // container uses.
    gc(&node, NETWORK, &[]);
    assert!(!ifbs(&node).contains(&shared_name(&owner("alive", "eth0"))));
    assert!(ifbs(&node).contains(&shared_name(&owner("unlisted-go", "eth0"))));
}

#[test]
fn gc_through_a_runtime() {
    let node = Node::new().unwrap();
    let pod = node.pod("one").unwrap();
    let bins = Bins::new(By::Us, By::Us);
    let runtime = bins.runtime(&node);
    let network = network("1.1.0", json!({}));
    runtime.status(&network).unwrap();
    runtime.add(&network, &shaped(&pod, "eth0", both(10_000_000, CONTAINERD))).unwrap();
    runtime.gc(&network, Some(&[ValidAttachment::new("one", "eth0")])).unwrap();
    runtime.check(&network, &shaped(&pod, "eth0", both(10_000_000, CONTAINERD))).unwrap();
    node.sh("rm -r /var/lib/cni/results").unwrap();
    pod.delete().unwrap();
    runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(ifbs(&node), Vec::<String>::new());
}

#[test]
fn status_names_what_the_kernel_lacks() {
    let node = Node::new().unwrap();
    let before = Snapshot::take(&node).unwrap();
    let config = json!({"cniVersion": "1.1.0", "name": NETWORK, "type": "bandwidth"});
    let status = Exec::new(BANDWIDTH, "STATUS").stdin(config.to_string());
    assert_eq!(succeed(&node, &status).stdout_text(), "");
    assert_eq!(before.diff(&Snapshot::take(&node).unwrap()), "");

    // Stands for a kernel that lacks a kind: no kernel has these.
    use ferrule_bandwidth::status::{KINDS, Kinds, missing};
    use ferrule_kernel::netlink::Socket;
    let lacks =
        |kinds: Kinds<'static>| node.run(move || missing(&mut Socket::route().unwrap(), kinds)).unwrap();
    assert_eq!(lacks(KINDS), Vec::<String>::new());
    assert_eq!(lacks(Kinds { link: "ferrule", ..KINDS }), ["ferrule (CONFIG_IFB)"]);
    assert_eq!(lacks(Kinds { qdisc: "ferrule", ..KINDS }), ["ferrule (CONFIG_NET_SCH_TBF)"]);
    assert_eq!(lacks(Kinds { action: "ferrule", ..KINDS }), ["ferrule (CONFIG_NET_ACT_MIRRED)"]);
    assert_eq!(before.diff(&Snapshot::take(&node).unwrap()), "");
}

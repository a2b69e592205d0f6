//! Together with the reference, several interfaces, leftovers, and plugins that report less.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{
    Bins, By, CONTAINERD, CRIO, NETWORK, both, bridge_only, call, config, fail, filters, host_veth, ifbs,
    limits, network, owner, qdiscs, shaped, succeed,
};
use conformance::fixture::{Node, Place as _, Pod, Snapshot};
use conformance::runner::{Exec, ValidAttachment};
use serde_json::{Value, json};

/// What bridge and host-local leave behind on purpose.
const STAY: [&str; 6] = ["cni0", "ip_forward", "-save nat", "nft ", "/var/lib/cni", "/run/cni"];

fn look(node: &Node) -> Snapshot {
    Snapshot::take(node).unwrap().ignoring(&STAY)
}

fn attached(name: &str) -> (Node, Pod, Value) {
    let node = Node::new().unwrap();
    let pod = node.pod(name).unwrap();
    let bins = Bins::new(By::Go, By::Us);
    let result = bins.runtime(&node).add(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
    (node, pod, result)
}

/// Limits of which neither implementation thinks that something has to be put right.
fn sound() -> Value {
    both(100_000_000, 10_000_000)
}

#[test]
fn sound_limits_look_the_same_by_either() {
    for limits in [sound(), limits((40_000_000_000, 4_000_000_000), (123_456_789, 987_654))] {
        let made = [By::Go, By::Us].map(|by| {
            let (node, pod, result) = attached("one");
            let config = config("1.0.0", limits.clone(), Some(&result));
            let added =
                succeed(&node, &call(by, "ADD", &pod.attachment("eth0"), &config)).document().unwrap();
            let (veth, ifb) = (host_veth(&result), owner("one", "eth0").shared_name());
            let disciplines = [&veth, &ifb].map(|link| qdiscs(&node, link).to_string());
            let names: Vec<String> =
                added["interfaces"].as_array().unwrap().iter().map(|i| i["name"].to_string()).collect();
            let link = node
                .sh(&format!("ip -o -d link show {ifb} | grep -o 'mtu [0-9]*\\|qlen [0-9]*\\|ifb'"))
                .unwrap();
            let filter = filters(&node, &veth).lines().take(4).collect::<Vec<_>>().join("\n");
            (disciplines, names.len(), names.last().cloned(), link, filter)
        });
        assert_eq!(made[0], made[1]);
    }
}

/// The reference's numbers for each burst that runtimes send, with the key and in the kernel.
#[test]
fn opting_out_gives_the_references_numbers() {
    for (rate, burst) in [
        (10_000_000, CONTAINERD),
        (1_000_000, CONTAINERD),
        (1_000, CONTAINERD),
        (100_000_000, CONTAINERD),
        (1_000_000, CRIO),
        (1_000_000_000, CRIO),
        (40_000_000_000, CONTAINERD),
        (10_000_000, common::KUBELET),
        (8_000, 80),
    ] {
        let made = [By::Go, By::Us].map(|by| {
            let (node, pod, result) = attached("one");
            let mut config = config("1.0.0", both(rate, burst), Some(&result));
            config["referenceNumbers"] = json!(true);
            succeed(&node, &call(by, "ADD", &pod.attachment("eth0"), &config));
            [host_veth(&result), owner("one", "eth0").shared_name()]
                .map(|link| node.sh(&format!("tc -d qdisc show dev {link} | grep tbf")).unwrap())
        });
        assert_eq!(made[0], made[1], "{rate} {burst}");
    }
}

#[test]
fn what_the_reference_made_is_checked_adopted_and_removed() {
    for limits in [sound(), both(10_000_000, CONTAINERD), both(1_000_000, CRIO)] {
        let (node, pod, result) = attached("one");
        let attachment = pod.attachment("eth0");
        let before = look(&node);
        let add = config("1.0.0", limits.clone(), Some(&result));
        let added = succeed(&node, &call(By::Go, "ADD", &attachment, &add)).document().unwrap();
        let then = config("1.0.0", limits.clone(), Some(&added));
        succeed(&node, &call(By::Us, "CHECK", &attachment, &then));
        // Adopted: the same IFB, now signed.
        let again = succeed(&node, &call(By::Us, "ADD", &attachment, &add)).document().unwrap();
        assert_eq!(again["interfaces"], added["interfaces"]);
        assert_eq!(ifbs(&node).len(), 1);
        succeed(&node, &call(By::Us, "CHECK", &attachment, &then));
        succeed(&node, &call(By::Us, "DEL", &attachment, &then));
        assert_eq!(before.diff(&look(&node)), "");
        // Removed as the reference left it, with the namespace or without.
        for netns in [attachment.netns.clone(), String::new()] {
            succeed(&node, &call(By::Go, "ADD", &attachment, &add));
            let mut attachment = attachment.clone();
            attachment.netns = netns;
            succeed(&node, &call(By::Us, "DEL", &attachment, &config("1.0.0", json!(null), None)));
            assert_eq!(ifbs(&node), Vec::<String>::new());
            let veth = host_veth(&result);
            node.sh(&format!(
                "tc qdisc del dev {veth} root 2>&-; tc qdisc del dev {veth} ingress 2>&-; true"
            ))
            .unwrap();
        }
    }
}

#[test]
fn what_we_made_the_reference_checks_and_removes() {
    let (node, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let added = succeed(&node, &call(By::Us, "ADD", &attachment, &config("1.0.0", sound(), Some(&result))));
    let then = config("1.0.0", sound(), Some(&added.document().unwrap()));
    succeed(&node, &call(By::Go, "CHECK", &attachment, &then));
    succeed(&node, &call(By::Go, "DEL", &attachment, &then));
    assert_eq!(ifbs(&node), Vec::<String>::new());
    succeed(&node, &call(By::Us, "DEL", &attachment, &then));
    pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
}

#[test]
fn two_interfaces_of_one_container() {
    for bridge in [By::Us, By::Go] {
        for first in ["eth0", "net1"] {
            let node = Node::new().unwrap();
            let pod = node.pod("one").unwrap();
            let bins = Bins::new(bridge, By::Us);
            let runtime = bins.runtime(&node);
            let network = network("1.0.0", json!({}));
            let second = if first == "eth0" { "net1" } else { "eth0" };
            let before = look(&node);
            let attachments =
                [first, second].map(|ifname| shaped(&pod, ifname, both(10_000_000, CONTAINERD)));
            for attachment in &attachments {
                runtime.add(&network, attachment).unwrap();
            }
            let both_of_them = ifbs(&node);
            assert_eq!(both_of_them, [owner("one", first).shared_name(), owner("one", second).own_name()]);
            for attachment in &attachments {
                runtime.check(&network, attachment).unwrap();
            }
            runtime.del(&network, &attachments[0]).unwrap();
            runtime.del(&network, &attachments[0]).unwrap();
            assert_eq!(ifbs(&node), both_of_them[1..]);
            runtime.check(&network, &attachments[1]).unwrap();
            runtime.del(&network, &attachments[1]).unwrap();
            assert_eq!(before.diff(&look(&node)), "");
        }
    }
}

/// Both want the reference's name for their IFB; the loser finds another one.
#[test]
fn two_interfaces_at_the_same_moment() {
    let (node, pod, result) = attached("one");
    let bridge = Bins::new(By::Go, By::Us);
    let second = bridge.runtime(&node).add(&bridge_only("1.0.0"), &pod.attachment("net1")).unwrap();
    let before = look(&node);
    for _ in 0..20 {
        for verb in ["ADD", "DEL"] {
            std::thread::scope(|scope| {
                for (ifname, result) in [("eth0", &result), ("net1", &second)] {
                    let config = config("1.0.0", both(10_000_000, CRIO), Some(result));
                    let (node, attachment) = (&node, pod.attachment(ifname));
                    scope.spawn(move || succeed(node, &call(By::Us, verb, &attachment, &config)));
                }
            });
            assert_eq!(ifbs(&node).len(), if verb == "ADD" { 2 } else { 0 });
        }
    }
    assert_eq!(before.diff(&look(&node)), "");
}

/// The reference shaped the first interface, before the plugins were replaced; the second is ours.
#[test]
fn a_second_interface_beside_one_of_the_reference() {
    let (node, pod, result) = attached("one");
    let bridge = Bins::new(By::Go, By::Us);
    let second = bridge.runtime(&node).add(&bridge_only("1.0.0"), &pod.attachment("net1")).unwrap();
    let before = look(&node);
    let config_of = |result: &Value| config("1.0.0", both(10_000_000, CRIO), Some(result));
    succeed(&node, &call(By::Go, "ADD", &pod.attachment("eth0"), &config_of(&result)));
    let first_only = look(&node);
    for _ in 0..2 {
        succeed(&node, &call(By::Us, "ADD", &pod.attachment("net1"), &config_of(&second)));
    }
    assert_eq!(ifbs(&node), [owner("one", "eth0").shared_name(), owner("one", "net1").own_name()]);
    for _ in 0..2 {
        succeed(&node, &call(By::Us, "DEL", &pod.attachment("net1"), &config("1.0.0", json!(null), None)));
        assert_eq!(first_only.diff(&look(&node)), "");
    }
    succeed(&node, &call(By::Us, "DEL", &pod.attachment("eth0"), &config("1.0.0", json!(null), None)));
    assert_eq!(before.diff(&look(&node)), "");
}

/// Network "ab" and container "c", network "a" and container "bc": the reference gives both one name.
#[test]
fn names_that_run_into_each_other() {
    let node = Node::new().unwrap();
    let bins = Bins::new(By::Go, By::Us);
    let runtime = bins.runtime(&node);
    let (one, two) = (node.pod("c").unwrap(), node.pod("bc").unwrap());
    let mut networks = ["ab", "a"].map(|name| {
        let mut network = network("1.0.0", json!({}));
        network.name = name.to_owned();
        network
    });
    networks[1].plugins[0].insert("bridge".to_owned(), json!("cni1"));
    networks[1].plugins[0]["ipam"]["subnet"] = json!("10.2.0.0/16");
    runtime.add(&networks[0], &shaped(&one, "eth0", both(10_000_000, CRIO))).unwrap();
    runtime.add(&networks[1], &shaped(&two, "eth0", both(10_000_000, CRIO))).unwrap();
    assert_eq!(ifbs(&node).len(), 2);
    runtime.del(&networks[1], &shaped(&two, "eth0", both(10_000_000, CRIO))).unwrap();
    runtime.check(&networks[0], &shaped(&one, "eth0", both(10_000_000, CRIO))).unwrap();
    runtime.del(&networks[0], &shaped(&one, "eth0", both(10_000_000, CRIO))).unwrap();
    assert_eq!(ifbs(&node), Vec::<String>::new());
}

fn gc(node: &Node, network: &str, valid: &[(&str, &str)]) {
    let list: Vec<Value> =
        valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect();
    let config = json!({"cniVersion": "1.1.0", "name": network, "type": "bandwidth",
        "cni.dev/valid-attachments": list, "cni.dev/attachments": list});
    let exec = Exec::new(common::BANDWIDTH, "GC").stdin(config.to_string());
    assert_eq!(succeed(node, &exec).stdout_text(), "");
}

#[test]
fn gc_removes_what_a_lost_del_left() {
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
    // Not ours to touch: another plugin's IFB, and one with our kind of name but somebody's words at it.
    node.sh("ip link add ifb7 type ifb; ip link add bwp0123456789ab type ifb; ip link set bwp0123456789ab alias mine").unwrap();
    assert_eq!(ifbs(&node).len(), 7);
    // A third network's GC takes what leads nowhere, and leaves what has another network's signature.
    let signed = owner("lost", "eth0").shared_name();
    let wait = || {
        conformance::fixture::eventually(std::time::Duration::from_secs(5), || {
            !node.sh("ip -o link show type veth").unwrap().contains("nobody")
                && node.sh("ip -o link show type veth").unwrap().lines().count() == 3
        })
    };
    assert!(wait());
    gc(&node, "elsewhere", &[]);
    assert_eq!(ifbs(&node).len(), 6);
    assert!(ifbs(&node).contains(&signed));
    gc(&node, NETWORK, &[("alive", "eth0"), ("alive-go", "eth0"), ("lost", "net1")]);
    let left = ifbs(&node);
    assert!(!left.contains(&signed), "{left:?}");
    assert_eq!(left.len(), 5, "{left:?}");
    for pod in [&alive, &alive_by_go, &unlisted_by_go] {
        assert!(left.contains(&owner(pod.name(), "eth0").shared_name()));
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
    }
    // Once the runtime says that nothing is alive, ours go; what a live container sends through stays.
    gc(&node, NETWORK, &[]);
    assert!(!ifbs(&node).contains(&owner("alive", "eth0").shared_name()));
    assert!(ifbs(&node).contains(&owner("unlisted-go", "eth0").shared_name()));
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

/// Results that say nothing of the host's side, or lie: the kernel knows.
#[test]
fn the_host_side_is_found_without_being_reported() {
    for interfaces in
        [json!([]), json!([{"name": "eth0", "sandbox": "/run/netns/one"}]), json!([{"name": "lo"}])]
    {
        let (node, pod, result) = attached("one");
        let before = look(&node);
        let mut reported = result.clone();
        reported["interfaces"] = interfaces;
        let config = config("1.0.0", both(10_000_000, CRIO), Some(&reported));
        let added =
            succeed(&node, &call(By::Us, "ADD", &pod.attachment("eth0"), &config)).document().unwrap();
        assert_eq!(qdiscs(&node, &host_veth(&result))[0]["kind"], "tbf");
        let check = self::config("1.0.0", both(10_000_000, CRIO), Some(&added));
        succeed(&node, &call(By::Us, "CHECK", &pod.attachment("eth0"), &check));
        succeed(&node, &call(By::Us, "DEL", &pod.attachment("eth0"), &config));
        assert_eq!(before.diff(&look(&node)), "");
    }
}

#[test]
fn a_container_without_a_peer_on_the_host_is_an_error() {
    let node = Node::new().unwrap();
    let (pod, other) = (node.pod("one").unwrap(), node.pod("other").unwrap());
    node.sh("ip link add uplink type bridge && ip link set uplink up").unwrap();
    let result =
        json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/one"}]});
    let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
    let before = look(&node);
    let error_now = || {
        let errors =
            ["ADD", "CHECK"].map(|verb| fail(&node, &call(By::Us, verb, &pod.attachment("eth0"), &config)));
        assert_eq!(errors[0], errors[1]);
        succeed(&node, &call(By::Us, "DEL", &pod.attachment("eth0"), &config));
        assert_eq!(before.diff(&look(&node)), "");
        errors[0].clone()
    };
    let error = error_now();
    assert!(
        error.contains(
            "container interface eth0 has no veth peer: could not look up \"eth0\": Link not found"
        ),
        "{error}"
    );
    pod.sh("ip link add eth0 type bridge").unwrap();
    let error = error_now();
    assert!(error.contains("interface \"eth0\" was not a veth interface"), "{error}");
    pod.sh("ip link del eth0").unwrap();

    // The peer is in a third namespace, and on the host a veth of another container has its index.
    pod.sh("ip link add eth0 type veth peer name x netns other && ip link set eth0 up").unwrap();
    let peer: u32 = other
        .sh("cat /sys/class/net/x/ifindex")
        .or_else(|_| other.sh("ip -o link show x | cut -d: -f1"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let error = error_now();
    assert!(error.contains(&format!("veth peer with index {peer} is not in host ns")), "{error}");
    // The namespaces stay as they are, the host gets the veth.
    let third = node.pod("third").unwrap();
    node.sh(&format!(
        "ip link add decoy index {peer} type veth peer name eth0 netns {} || ip link show",
        third.name()
    ))
    .unwrap();
    let before = look(&node);
    let error = fail(&node, &call(By::Us, "ADD", &pod.attachment("eth0"), &config));
    assert!(error.contains("is not in host ns"), "{error}");
    assert_eq!(before.diff(&look(&node)), "");
}

#[test]
fn check_notices_every_loss_and_change() {
    let (node, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let (veth, ifb) = (host_veth(&result), owner("one", "eth0").shared_name());
    let add = config("1.0.0", both(10_000_000, CRIO), Some(&result));
    for (harm, expected) in [
        ("tc qdisc del dev VETH root", "Failed to find qdisc"),
        ("tc qdisc replace dev VETH root pfifo", "Failed to find qdisc"),
        (
            "tc qdisc change dev VETH root handle 1: tbf rate 20mbit burst 31250 limit 62500",
            "Rate doesn't match",
        ),
        (
            "tc qdisc change dev VETH root handle 1: tbf rate 10mbit burst 31250 limit 62499",
            "Limit doesn't match",
        ),
        (
            "tc qdisc change dev VETH root handle 1: tbf rate 10mbit burst 41250 limit 62500",
            "Buffer doesn't match",
        ),
        ("tc qdisc del dev IFB root", "Failed to find qdisc"),
        (
            "tc qdisc change dev IFB root handle 1: tbf rate 20mbit burst 31250 limit 62500",
            "Rate doesn't match",
        ),
        ("ip link set IFB down", "is down"),
        ("ip link del IFB", "get ifb device: Link not found"),
        ("tc qdisc del dev VETH ingress", "has lost its ingress qdisc"),
        ("tc filter del dev VETH ingress", "has no filter that leads to"),
        (
            "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 1 protocol ip u32 match u32 0 0 action mirred egress redirect dev IFB",
            "has no filter",
        ),
        (
            "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 1 protocol all u32 match u32 1 1 action mirred egress redirect dev IFB",
            "has no filter",
        ),
        (
            "tc filter del dev VETH ingress; ip link add ifb9 type ifb; tc filter add dev VETH ingress pref 1 protocol all u32 match u32 0 0 action mirred egress redirect dev ifb9",
            "has no filter",
        ),
        (
            "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 1 protocol all u32 match u32 0 0 action mirred egress mirror dev IFB",
            "has no filter",
        ),
        ("ip link del IFB; ip link add IFB type ifb; ip link set IFB up", "get ifb device: Link not found"),
        (
            "alias=$(cat /sys/class/net/IFB/ifalias); ip link del IFB; ip link add IFB type ifb; ip link set IFB up alias \"$alias\"",
            "has MAC address",
        ),
    ] {
        let added = succeed(&node, &call(By::Us, "ADD", &attachment, &add)).document().unwrap();
        let check =
            call(By::Us, "CHECK", &attachment, &config("1.0.0", both(10_000_000, CRIO), Some(&added)));
        succeed(&node, &check);
        node.sh(&harm.replace("VETH", &veth).replace("IFB", &ifb)).unwrap();
        let error = fail(&node, &check);
        assert!(error.contains(expected), "{harm}: {error}");
        node.sh(&format!("ip link del ifb9 2>&-; tc qdisc del dev {veth} root 2>&-; tc qdisc del dev {veth} ingress 2>&-; ip link del {ifb} 2>&-; true")).unwrap();
    }
}

#[test]
fn status_says_what_the_kernel_lacks() {
    let node = Node::new().unwrap();
    let before = Snapshot::take(&node).unwrap();
    let config = json!({"cniVersion": "1.1.0", "name": NETWORK, "type": "bandwidth"});
    let status = Exec::new(common::BANDWIDTH, "STATUS").stdin(config.to_string());
    assert_eq!(succeed(&node, &status).stdout_text(), "");
    assert_eq!(before.diff(&Snapshot::take(&node).unwrap()), "");

    // A kernel that lacks something, played by one that is asked for what no kernel has.
    use cni_common::netlink::Socket;
    use ferrule_bandwidth::status::{KINDS, Kinds, missing};
    let lacks =
        |kinds: Kinds<'static>| node.run(move || missing(&mut Socket::route().unwrap(), kinds)).unwrap();
    assert_eq!(lacks(KINDS), Vec::<String>::new());
    assert_eq!(lacks(Kinds { link: "ferrule", ..KINDS }), ["ferrule (CONFIG_IFB)"]);
    assert_eq!(lacks(Kinds { qdisc: "ferrule", ..KINDS }), ["ferrule (CONFIG_NET_SCH_TBF)"]);
    assert_eq!(lacks(Kinds { action: "ferrule", ..KINDS }), ["ferrule (CONFIG_NET_ACT_MIRRED)"]);
    assert_eq!(before.diff(&Snapshot::take(&node).unwrap()), "");
}

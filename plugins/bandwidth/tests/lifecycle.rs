//! ADD, again and undone; DEL in every state; hooks and disciplines of somebody else.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::Duration;

use cni_common::netlink::filter::AT_INGRESS;
use cni_common::netlink::qdisc::Tbf;
use cni_common::netlink::{LinkId, Socket};
use common::{
    BANDWIDTH, Bins, By, CONTAINERD, CRIO, both, bridge_only, call, config, fail, filters, host_veth, ifbs,
    limits, network, owner, qdiscs, shaped, succeed,
};
use conformance::fixture::{Node, Place as _, Pod, Snapshot, eventually};
use conformance::runner::Exec;
use ferrule_bandwidth::add::execute;
use ferrule_bandwidth::owner::Hook;
use ferrule_bandwidth::plan::{Egress, Plan, Root};
use serde_json::{Value, json};

/// What bridge and host-local leave behind on purpose.
/// The number of an action is the kernel's.
const STAY: [&str; 7] =
    ["cni0", "ip_forward", "-save nat", "nft ", "/var/lib/cni", "/run/cni", "ingress: index "];

fn look(node: &Node) -> Snapshot {
    Snapshot::take(node).unwrap().ignoring(&STAY)
}

/// A node with a container behind Go's bridge, and the result.
fn attached(name: &str) -> (Node, Pod, Value) {
    let node = Node::new().unwrap();
    let pod = node.pod(name).unwrap();
    let bins = Bins::new(By::Go, By::Us);
    let result = bins.runtime(&node).add(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
    (node, pod, result)
}

#[test]
fn a_chain_shapes_both_directions_and_leaves_nothing() {
    for bridge in [By::Us, By::Go] {
        let bins = Bins::new(bridge, By::Us);
        for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            if (bridge, version) == (By::Go, "1.1.0") {
                continue; // Debian's does not know it
            }
            let node = Node::new().unwrap();
            let pod = node.pod("one").unwrap();
            let before = look(&node);
            let network = network(version, json!({}));
            let attachment = shaped(&pod, "eth0", both(100_000_000, CONTAINERD));
            let runtime = bins.runtime(&node);
            let result = runtime.add(&network, &attachment).unwrap();

            let name = owner("one", "eth0").shared_name();
            let last = result["interfaces"].as_array().unwrap().last().unwrap();
            assert_eq!(last["name"], name.as_str());
            assert!(last.get("sandbox").is_none_or(|sandbox| sandbox == ""), "{last}");
            let veth = host_veth(&result);
            let link: Value =
                serde_json::from_str(&node.sh(&format!("ip -j -d link show {name}")).unwrap()).unwrap();
            assert_eq!(
                (&link[0]["linkinfo"]["info_kind"], &link[0]["address"]),
                (&json!("ifb"), &last["mac"])
            );
            assert_eq!((&link[0]["mtu"], &link[0]["txqlen"]), (&json!(1500), &json!(null)));
            let alias = link[0]["ifalias"].as_str().unwrap();
            assert!(alias.starts_with("bandwidth network=pods container=one ifname=eth0 veth="), "{alias}");
            for link in [&veth, &name] {
                let root = &qdiscs(&node, link)[0];
                assert_eq!(
                    (&root["kind"], &root["handle"], &root["root"]),
                    (&json!("tbf"), &json!("1:"), &json!(true))
                );
                assert_eq!(root["options"]["rate"], 12_500_000, "{root}");
            }
            assert_eq!(qdiscs(&node, &veth)[1]["kind"], "ingress");
            let filter = filters(&node, &veth);
            for part in [
                "pref 1 u32",
                "fh 800::800",
                "match 00000000/00000000",
                &format!("Egress Redirect to device {name}) stolen"),
            ] {
                assert!(filter.contains(part), "{part} is not in\n{filter}");
            }
            pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
            if version != "0.3.0" && version != "0.3.1" {
                runtime.check(&network, &attachment).unwrap();
            }
            runtime.del(&network, &attachment).unwrap();
            runtime.del(&network, &attachment).unwrap();
            assert_eq!(before.diff(&look(&node)), "", "{bridge:?} {version}");
        }
    }
}

#[test]
fn only_what_is_asked_for_is_made() {
    let (node, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let veth = host_veth(&result);
    let before = look(&node);
    for (limits, expected) in [
        (limits((0, 0), (0, 0)), ""),
        (json!(null), ""),
        (limits((8_000_000, CRIO), (0, 0)), "tbf"),
        (limits((0, 0), (8_000_000, CRIO)), "ingress"),
    ] {
        let config = config("1.0.0", limits, Some(&result));
        let output = succeed(&node, &call(By::Us, "ADD", &attachment, &config)).document().unwrap();
        let added =
            output["interfaces"].as_array().unwrap().len() - result["interfaces"].as_array().unwrap().len();
        assert_eq!(added, usize::from(expected == "ingress"));
        let kinds = node.sh(&format!("tc qdisc show dev {veth} | grep -v noqueue | cut -d' ' -f2")).unwrap();
        assert_eq!(kinds.trim(), expected);
        assert_eq!(ifbs(&node).len(), added);
        succeed(&node, &call(By::Us, "DEL", &attachment, &config));
        assert_eq!(before.diff(&look(&node)), "", "{config}");
    }
}

#[test]
fn a_second_add_leads_to_the_same() {
    let (node, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let add = call(By::Us, "ADD", &attachment, &config("1.0.0", both(10_000_000, CRIO), Some(&result)));
    let first = succeed(&node, &add).document().unwrap();
    let state = look(&node);
    assert_eq!(succeed(&node, &add).document().unwrap(), first);
    assert_eq!(state.diff(&look(&node)), "");

    // Other limits replace the first.
    let other = call(By::Us, "ADD", &attachment, &config("1.0.0", both(80_000_000, CRIO), Some(&result)));
    assert_eq!(succeed(&node, &other).document().unwrap(), first);
    for link in [host_veth(&result), owner("one", "eth0").shared_name()] {
        assert_eq!(qdiscs(&node, &link)[0]["options"]["rate"], 10_000_000);
    }

    // What is missing is made again: a filter that leads nowhere is replaced, an IFB that is down set up.
    let veth = host_veth(&result);
    node.sh(&format!("ip link del {}", owner("one", "eth0").shared_name())).unwrap();
    assert!(pod.sh("ping -c 1 -W 1 10.1.0.1").is_err(), "the filter should be a black hole");
    succeed(&node, &add);
    assert_eq!(state.diff(&look(&node)), "");
    node.sh(&format!(
        "tc filter del dev {veth} ingress; ip link set {} down",
        owner("one", "eth0").shared_name()
    ))
    .unwrap();
    succeed(&node, &add);
    assert_eq!(state.diff(&look(&node)), "");
    pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
}

/// A hook of somebody else, with a filter or without: ours comes last and goes alone.
#[test]
fn a_hook_of_somebody_else_is_shared() {
    // A program that returns 0, "nothing for me": what an agent that only looks does.
    let filter = "protocol all bpf bytecode '1,6 0 0 0,' flowid 1:7";
    for hook in ["clsact", "ingress"] {
        for prepare in [
            "true".to_owned(),
            format!("tc filter add dev VETH ingress pref 7 {filter}"),
            format!("tc filter add dev VETH ingress {filter}"),
        ] {
            let (node, pod, result) = attached("one");
            let attachment = pod.attachment("eth0");
            let veth = host_veth(&result);
            // Where the filters are shown depends on who was there last, on us, who know an ingress hook by that name.
            let at = if hook == "ingress" { "parent ffff:" } else { "ingress" };
            let prepare = prepare.replace("VETH ingress", &format!("{veth} {at}"));
            node.sh(&format!("tc qdisc add dev {veth} {hook}; {prepare}")).unwrap();
            let before = look(&node);
            let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
            let add = call(By::Us, "ADD", &attachment, &config);
            let added = succeed(&node, &add).document().unwrap();
            let after = look(&node);
            succeed(&node, &add);
            assert_eq!(after.diff(&look(&node)), "");
            pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
            let passed =
                node.sh(&format!("tc -s qdisc show dev {}", owner("one", "eth0").shared_name())).unwrap();
            assert!(!passed.contains("Sent 0 bytes"), "nothing was sent through the IFB:\n{passed}");
            let shown = filters(&node, &veth);
            let (ours, others) = (shown.find("mirred").unwrap(), shown.find("bpf"));
            assert!(others.is_none_or(|others| others < ours), "{shown}");

            let check = self::config("1.0.0", both(10_000_000, CRIO), Some(&added));
            succeed(&node, &call(By::Us, "CHECK", &attachment, &check));
            succeed(&node, &call(By::Us, "DEL", &attachment, &check));
            assert_eq!(before.diff(&look(&node)), "", "{hook} {prepare}");
        }
    }
}

#[test]
fn a_filter_that_came_later_keeps_our_hook() {
    let (node, pod, result) = attached("one");
    let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
    let veth = host_veth(&result);
    succeed(&node, &call(By::Us, "ADD", &pod.attachment("eth0"), &config));
    node.sh(&format!("tc filter add dev {veth} ingress pref 9 protocol ip u32 match u32 0 0 flowid 1:7"))
        .unwrap();
    succeed(&node, &call(By::Us, "DEL", &pod.attachment("eth0"), &config));
    let left = filters(&node, &veth);
    assert!(left.contains("1:7") && !left.contains("mirred"), "{left}");
    pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
}

#[test]
fn a_root_qdisc_of_somebody_else_is_an_error_that_names_it() {
    for (qdisc, named) in [
        ("pfifo limit 10", "pfifo 8"),
        ("handle 7: tbf rate 1mbit burst 10k limit 10k", "tbf 7:"),
        ("handle 1: pfifo", "pfifo 1:"),
    ] {
        let (node, pod, result) = attached("one");
        let veth = host_veth(&result);
        node.sh(&format!("tc qdisc add dev {veth} root {qdisc}")).unwrap();
        let before = look(&node);
        let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
        let error = fail(&node, &call(By::Us, "ADD", &pod.attachment("eth0"), &config));
        assert!(error.contains("somebody else") && error.contains(&veth), "{error}");
        assert!(error.contains(named), "{error}");
        assert_eq!(before.diff(&look(&node)), "");
        succeed(&node, &call(By::Us, "DEL", &pod.attachment("eth0"), &config));
        assert_eq!(before.diff(&look(&node)), "");
    }
}

/// Each step of ADD fails once, in the kernel, and everything before it is undone.
#[test]
fn a_failure_at_any_step_leaves_nothing() {
    let (node, _pod, result) = attached("one");
    let veth = host_veth(&result);
    let before = look(&node);
    let found = node.run(|| Socket::route().unwrap().link(LinkId::Name(&veth)).unwrap().unwrap()).unwrap();
    let tbf = Tbf { rate: 125_000, limit: 100_000, buffer: 1_000_000, burst: None };
    let broken = Tbf { buffer: 0, ..tbf };
    let egress = Egress {
        name: owner("one", "eth0").shared_name(),
        existing: None,
        mtu: 1500,
        alias: owner("one", "eth0").alias(found.index, Hook::Made),
        tbf,
        makes_hook: true,
        parent: AT_INGRESS,
        stale: Vec::new(),
        preference: Some(1),
    };
    let plan = Plan { host: found.index, ingress: Some(Root::Create(tbf)), egress: Some(egress.clone()) };
    let with = |egress: Egress| Plan { egress: Some(egress), ..plan.clone() };
    let execute = |plan: &Plan| node.run(|| execute(&mut Socket::route().unwrap(), plan)).unwrap();

    for (what, plan) in [
        ("create qdisc", Plan { ingress: Some(Root::Create(broken)), ..plan.clone() }),
        ("adding link", with(Egress { name: veth.clone(), ..egress.clone() })),
        ("adding link", with(Egress { name: "a/b".to_owned(), ..egress.clone() })),
        ("set up the ifb device", with(Egress { existing: Some(9999), ..egress.clone() })),
        ("create ifb qdisc", with(Egress { tbf: broken, ..egress.clone() })),
        ("add filter", with(Egress { parent: 0x0005_0000, ..egress.clone() })),
        ("remove a filter", with(Egress { stale: vec![(3, 0x8000_0800)], ..egress.clone() })),
    ] {
        let error = execute(&plan).unwrap_err().error;
        assert!(error.msg.starts_with(what), "{what}: {error}");
        assert_eq!(before.diff(&look(&node)), "", "{what}");
    }

    // A hook that turned up in the meantime is a race, and stays.
    node.sh(&format!("tc qdisc add dev {veth} clsact")).unwrap();
    let with_hook = look(&node);
    let failed = execute(&plan).unwrap_err();
    assert!(failed.is_race && failed.error.msg.starts_with("create ingress qdisc"), "{failed:?}");
    assert_eq!(with_hook.diff(&look(&node)), "");
    node.sh(&format!("tc qdisc del dev {veth} clsact")).unwrap();

    // Numbers that were there before come back.
    execute(&Plan { egress: None, ..plan.clone() }).unwrap();
    let shaped = look(&node);
    let to = Tbf { rate: 250_000, ..tbf };
    let change =
        Plan { ingress: Some(Root::Change { to, from: tbf }), ..with(Egress { tbf: broken, ..egress }) };
    execute(&change).unwrap_err();
    assert_eq!(shaped.diff(&look(&node)), "");
}

#[test]
fn del_in_every_state() {
    let named = |result: &Value| config("1.0.0", both(10_000_000, CRIO), Some(result));
    let bare = config("1.0.0", json!(null), None);
    // Limits that ADD would refuse, and a result that cannot be read.
    let mut broken = config("1.0.0", json!({"ingressRate": 7}), None);
    broken["prevResult"] = json!("x");
    type Prepare = fn(&Node, &Pod, &str);
    let states: [(&str, Prepare); 6] = [
        ("as made", |_, _, _| {}),
        ("IFB gone", |node, _, _| {
            drop(node.sh(&format!("ip link del {}", owner("one", "eth0").shared_name())).unwrap())
        }),
        ("filter gone", |node, _, veth| drop(node.sh(&format!("tc filter del dev {veth} ingress")).unwrap())),
        ("hook and root gone", |node, _, veth| {
            drop(node.sh(&format!("tc qdisc del dev {veth} ingress; tc qdisc del dev {veth} root")).unwrap());
        }),
        ("interface gone", |_, pod, _| drop(pod.sh("ip link del eth0").unwrap())),
        ("namespace gone", |_, pod, _| pod.delete().unwrap()),
    ];
    for (state, prepare) in states {
        for (given, with_netns) in
            [("all", true), ("all", false), ("bare", true), ("bare", false), ("broken", true)]
        {
            let (node, pod, result) = attached("one");
            let before = look(&node);
            let veth = host_veth(&result);
            let add = call(By::Us, "ADD", &pod.attachment("eth0"), &named(&result));
            let added = succeed(&node, &add).document().unwrap();
            prepare(&node, &pod, &veth);
            let config = match given {
                "all" => named(&added),
                "bare" => bare.clone(),
                _ => broken.clone(),
            };
            let mut attachment = pod.attachment("eth0");
            if !with_netns {
                attachment.netns.clear();
            }
            for _ in 0..2 {
                succeed(&node, &call(By::Us, "DEL", &attachment, &config));
            }
            let case = format!("{state}, {given}, netns {with_netns}");
            assert_eq!(ifbs(&node), Vec::<String>::new(), "{case}");
            let is_there = node.sh(&format!("ip link show {veth}")).is_ok();
            // Without namespace and IFB nothing tells which link it was; what is left there dies with it.
            let untraceable =
                !with_netns && matches!(state, "IFB gone" | "filter gone" | "hook and root gone");
            if is_there && !matches!(state, "namespace gone" | "interface gone") && !untraceable {
                assert_eq!(before.diff(&look(&node)), "", "{case}");
                pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
            }
        }
    }
}

/// A container that lives on loses no more than what was in the queues when its limits are taken away.
#[test]
fn del_is_no_black_hole() {
    for with_netns in [true, false] {
        let (node, pod, result) = attached("one");
        let config = config("1.0.0", both(1_000_000_000, CRIO), Some(&result));
        let mut attachment = pod.attachment("eth0");
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
        for _ in 0..5 {
            attachment.netns = pod.path().to_string_lossy().into_owned();
            succeed(&node, &call(By::Us, "ADD", &attachment, &config));
            if !with_netns {
                attachment.netns.clear();
            }
            let said = std::thread::scope(|scope| {
                let ping = scope.spawn(|| pod.sh("ping -q -i 0.002 -c 150 10.1.0.1").unwrap());
                std::thread::sleep(Duration::from_millis(120));
                succeed(&node, &call(By::Us, "DEL", &attachment, &config));
                ping.join().unwrap()
            });
            let received = said.split(" received").next().unwrap().rsplit(' ').next().unwrap();
            assert!(received.parse::<u32>().unwrap() >= 147, "{said}");
        }
    }
}

#[test]
fn requests_that_make_no_sense() {
    let (node, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let before = look(&node);
    let error_of = |verb: &str, limits: Value, previous: Option<&Value>| {
        fail(&node, &call(By::Us, verb, &attachment, &config("1.0.0", limits, previous)))
    };
    let some = || both(10_000_000, CRIO);
    assert!(error_of("ADD", some(), None).contains("must be called as chained plugin"));
    assert!(error_of("ADD", json!(null), None).contains("must be called as chained plugin"));
    assert!(error_of("CHECK", some(), None).contains("must be called as a chained plugin"));
    assert!(
        error_of("ADD", limits((8, 0), (0, 0)), Some(&result))
            .contains("if rate is set, burst must also be set")
    );
    assert!(error_of("ADD", limits((7, 8), (0, 0)), Some(&result)).contains("7 bit/s"));
    for version in ["0.1.0", "0.2.0", "2.0.0"] {
        let error = fail(&node, &call(By::Us, "ADD", &attachment, &config(version, some(), None)));
        assert!(error.contains("incompatible CNI versions"), "{error}");
    }
    assert_eq!(before.diff(&look(&node)), "");
}

/// A rate of 1 kbit/s, the least that Kubernetes allows: a frame takes twelve seconds, and yet one fits the bucket.
#[test]
fn the_slowest_container_is_not_cut_off() {
    let (node, pod, result) = attached("one");
    let config = config("1.0.0", both(1_000, CONTAINERD), Some(&result));
    succeed(&node, &call(By::Us, "ADD", &pod.attachment("eth0"), &config));
    pod.sh("ping -c 1 -s 1400 -W 5 10.1.0.1").unwrap();
}

/// No process is started, by any verb.
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

/// The number of netlink requests that are waited for, per verb.
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

/// The system calls of one call that concern processes and sockets.
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
fn thirty_two_at_once_leave_nothing() {
    let node = Node::new().unwrap();
    let bins = Bins::new(By::Us, By::Us);
    let network = network("1.0.0", json!({}));
    let pods: Vec<Pod> = (0..32).map(|n| node.pod(&format!("pod{n}")).unwrap()).collect();
    let before = look(&node);
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
            eventually(Duration::from_secs(2), || before.diff(&look(&node)).is_empty()),
            "{}",
            before.diff(&look(&node))
        );
    }
}

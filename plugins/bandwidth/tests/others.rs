//! Hooks, filters and disciplines of somebody else.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{By, CRIO, attached, both, call, config, fail, filters, host_veth, look, owner, succeed};
use conformance::fixture::Place as _;
use ferrule_bandwidth::owner::shared_name;

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
                node.sh(&format!("tc -s qdisc show dev {}", shared_name(&owner("one", "eth0")))).unwrap();
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

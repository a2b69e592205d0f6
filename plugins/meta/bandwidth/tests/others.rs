//! Ingress qdiscs, filters and root qdiscs of other programs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use common::{By, CRIO, attached, both, call, config, fail, filters, host_veth, owner, snapshot, succeed};
use ferrule_bandwidth::owner::shared_name;

/// In another program's ingress qdisc, with filters or without, our filter comes last, and DEL removes only
/// it.
#[test]
fn ingress_qdisc_of_another_program_is_shared() {
    // A BPF program that returns 0 and so lets the kernel go on to the next filter, like an agent that only
    // observes.
    let filter = "protocol all bpf bytecode '1,6 0 0 0,' flowid 1:7";
    for kind in ["clsact", "ingress"] {
        for prepare in [
            "true".to_owned(),
            format!("tc filter add dev VETH ingress pref 7 {filter}"),
            format!("tc filter add dev VETH ingress {filter}"),
        ] {
            let (node, pod, result) = attached("one");
            let attachment = pod.attachment("eth0");
            let veth = host_veth(&result);
            // tc shows filters under the parent of the last request. Our plugin uses `ffff:` for an ingress
            // qdisc, so this filter must use it too.
            let at = if kind == "ingress" { "parent ffff:" } else { "ingress" };
            let prepare = prepare.replace("VETH ingress", &format!("{veth} {at}"));
            node.sh(&format!("tc qdisc add dev {veth} {kind}; {prepare}")).unwrap();
            let before = snapshot(&node);
            let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
            let add = call(By::Us, "ADD", &attachment, &config);
            let added = succeed(&node, &add).document().unwrap();
            let after = snapshot(&node);
            succeed(&node, &add);
            assert_eq!(after.diff(&snapshot(&node)), "");
            pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
            let passed =
                node.sh(&format!("tc -s qdisc show dev {}", shared_name(&owner("one", "eth0")))).unwrap();
            assert!(!passed.contains("Sent 0 bytes"), "nothing was sent through the IFB:\n{passed}");
            let shown = filters(&node, &veth);
            let (ours, bpf) = (shown.find("mirred").unwrap(), shown.find("bpf"));
            assert!(bpf.is_none_or(|bpf| bpf < ours), "{shown}");

            let check = self::config("1.0.0", both(10_000_000, CRIO), Some(&added));
            succeed(&node, &call(By::Us, "CHECK", &attachment, &check));
            succeed(&node, &call(By::Us, "DEL", &attachment, &check));
            assert_eq!(before.diff(&snapshot(&node)), "", "{kind} {prepare}");
        }
    }
}

#[test]
fn later_filter_of_another_program_keeps_the_qdisc() {
    let (node, pod, result) = attached("one");
    let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
    let veth = host_veth(&result);
    succeed(&node, &call(By::Us, "ADD", &pod.attachment("eth0"), &config));
    node.sh(&format!("tc filter add dev {veth} ingress pref 9 protocol ip u32 match u32 0 0 flowid 1:7"))
        .unwrap();
    succeed(&node, &call(By::Us, "DEL", &pod.attachment("eth0"), &config));
    let remaining = filters(&node, &veth);
    assert!(remaining.contains("1:7") && !remaining.contains("mirred"), "{remaining}");
    pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
}

#[test]
fn root_qdisc_of_another_program_is_an_error() {
    for (qdisc, named) in [
        ("pfifo limit 10", "pfifo 8"),
        ("handle 7: tbf rate 1mbit burst 10k limit 10k", "tbf 7:"),
        ("handle 1: pfifo", "pfifo 1:"),
    ] {
        let (node, pod, result) = attached("one");
        let veth = host_veth(&result);
        node.sh(&format!("tc qdisc add dev {veth} root {qdisc}")).unwrap();
        let before = snapshot(&node);
        let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
        let error = fail(&node, &call(By::Us, "ADD", &pod.attachment("eth0"), &config));
        assert!(error.contains("already has a root qdisc") && error.contains(&veth), "{error}");
        assert!(error.contains(named), "{error}");
        assert_eq!(before.diff(&snapshot(&node)), "");
        succeed(&node, &call(By::Us, "DEL", &pod.attachment("eth0"), &config));
        assert_eq!(before.diff(&snapshot(&node)), "");
    }
}

//! Ingress qdiscs, filters and root qdiscs of other programs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::succeed;
use common::{CRIO, attached, both, config, filters, host_veth, owner, snapshot};
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
            let (ctx, pod, result) = attached("one");
            let attachment = pod.attachment("eth0");
            let veth = host_veth(&result);
            // tc shows filters under the parent of the last request. Our plugin uses `ffff:` for an ingress
            // qdisc, so this filter must use it too.
            let at = if kind == "ingress" { "parent ffff:" } else { "ingress" };
            let prepare = prepare.replace("VETH ingress", &format!("{veth} {at}"));
            ctx.node.sh(&format!("tc qdisc add dev {veth} {kind}; {prepare}")).unwrap();
            let before = snapshot(&ctx);
            let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
            let add = ctx.exec("ADD", &attachment, &config);
            let added = succeed(&ctx.node, &add);
            let after = snapshot(&ctx);
            succeed(&ctx.node, &add);
            assert_eq!(after.diff(&snapshot(&ctx)), "");
            pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
            let passed =
                ctx.node.sh(&format!("tc -s qdisc show dev {}", shared_name(&owner("one", "eth0")))).unwrap();
            assert!(!passed.contains("Sent 0 bytes"), "nothing was sent through the IFB:\n{passed}");
            let shown = filters(&ctx, &veth);
            let (ours, bpf) = (shown.find("mirred").unwrap(), shown.find("bpf"));
            assert!(bpf.is_none_or(|bpf| bpf < ours), "{shown}");

            let check = self::config("1.0.0", both(10_000_000, CRIO), Some(&added));
            ctx.check(&attachment, &check);
            ctx.del(&attachment, &check);
            assert_eq!(before.diff(&snapshot(&ctx)), "", "{kind} {prepare}");
        }
    }
}

#[test]
fn later_filter_of_another_program_keeps_the_qdisc() {
    let (ctx, pod, result) = attached("one");
    let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
    let veth = host_veth(&result);
    ctx.add(&pod.attachment("eth0"), &config);
    ctx.node
        .sh(&format!("tc filter add dev {veth} ingress pref 9 protocol ip u32 match u32 0 0 flowid 1:7"))
        .unwrap();
    ctx.del(&pod.attachment("eth0"), &config);
    let remaining = filters(&ctx, &veth);
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
        let (ctx, pod, result) = attached("one");
        let veth = host_veth(&result);
        ctx.node.sh(&format!("tc qdisc add dev {veth} root {qdisc}")).unwrap();
        let before = snapshot(&ctx);
        let config = config("1.0.0", both(10_000_000, CRIO), Some(&result));
        let error = ctx.fail("ADD", &pod.attachment("eth0"), &config);
        assert!(error.contains("already has a root qdisc") && error.contains(&veth), "{error}");
        assert!(error.contains(named), "{error}");
        assert_eq!(before.diff(&snapshot(&ctx)), "");
        ctx.del(&pod.attachment("eth0"), &config);
        assert_eq!(before.diff(&snapshot(&ctx)), "");
    }
}

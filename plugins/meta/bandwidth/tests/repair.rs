//! Repair makes again what CHECK refuses. Sound objects keep their packets and counters.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{TestContext, link};
use cni_lab::{Place as _, Pod, TIMEOUT, eventually};
use common::{CONTAINERD, attached, both, config, host_veth, owner, qdiscs, reference, snapshot};
use ferrule_bandwidth::owner::shared_name;
use serde_json::Value;

const REPAIR: &str = env!("CARGO_BIN_EXE_bandwidth-repair");

/// The damaged part: the qdisc of the host's end, that of the IFB, the IFB itself, or the redirection to it.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Ingress,
    IfbQdisc,
    Ifb,
    Filter,
}

const DAMAGES: [(Part, &str); 13] = [
    (Part::Ingress, "tc qdisc del dev VETH root"),
    (Part::Ingress, "tc qdisc change dev VETH root handle 1: tbf rate 20mbit burst 31250 limit 62500"),
    (Part::IfbQdisc, "tc qdisc del dev IFB root"),
    (Part::IfbQdisc, "tc qdisc replace dev IFB root handle 2: pfifo"),
    (Part::IfbQdisc, "tc qdisc change dev IFB root handle 1: tbf rate 20mbit burst 31250 limit 62500"),
    (Part::Ifb, "ip link del IFB"),
    (Part::Ifb, "ip link del IFB; ip link add IFB type ifb; ip link set IFB up"),
    (
        Part::Ifb,
        "alias=$(cat /sys/class/net/IFB/ifalias); ip link del IFB; ip link add IFB type ifb; ip link set IFB up alias \"$alias\"",
    ),
    (Part::Filter, "ip link set IFB down"),
    (Part::Filter, "tc qdisc del dev VETH ingress"),
    (Part::Filter, "tc filter del dev VETH ingress"),
    (Part::Filter, "tc qdisc del dev VETH ingress; tc qdisc add dev VETH clsact"),
    (
        Part::Filter,
        "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 1 protocol ip u32 match u32 0 0 action mirred egress redirect dev IFB",
    ),
];

/// What remains of other programs after some of the damages.
const FOREIGN: &str =
    "tc filter del dev VETH ingress pref 1 protocol ip 2>&-; tc qdisc del dev VETH clsact 2>&-; true";

fn bytes(ctx: &TestContext, link: &str) -> u64 {
    let list = ctx.node.sh(&format!("tc -s -j qdisc show dev {link} root")).unwrap();
    serde_json::from_str::<Value>(&list).unwrap()[0]["bytes"].as_u64().unwrap()
}

fn ping(pod: &Pod) {
    assert!(eventually(TIMEOUT, || pod.sh("ping -c 1 -W 1 10.1.0.1").is_ok()));
}

#[test]
fn damage_is_mended_and_the_rest_goes_on() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let (veth, ifb) = (host_veth(&result), shared_name(&owner("one", "eth0")));
    let names = |script: &str| script.replace("VETH", &veth).replace("IFB", &ifb);
    let conf = |result: &Value| config("1.0.0", both(10_000_000, CONTAINERD), Some(result));
    let clean = snapshot(&ctx);
    for (part, damage) in DAMAGES {
        let added = ctx.add(&attachment, &conf(&result));
        let conf = conf(&added);
        ping(&pod);
        let index = link(&ctx.node, &ifb)["ifindex"].clone();
        let (to, from) = (bytes(&ctx, &veth), bytes(&ctx, &ifb));
        assert!(to > 0 && from > 0);
        ctx.mend(REPAIR, &attachment, &conf, &ctx.node, &names(damage));
        ping(&pod);
        assert!(part == Part::Ingress || bytes(&ctx, &veth) > to, "{damage}");
        assert!(matches!(part, Part::IfbQdisc | Part::Ifb) || bytes(&ctx, &ifb) > from, "{damage}");
        assert!(part == Part::Ifb || link(&ctx.node, &ifb)["ifindex"] == index, "{damage}");
        // The reference's program reads our objects.
        assert_eq!(qdiscs(&ctx, &veth)[0]["kind"], "tbf", "{damage}");
        ctx.node.sh(&names(FOREIGN)).unwrap();
        ctx.del(&attachment, &conf);
        assert_eq!(clean.diff(&snapshot(&ctx)), "", "{damage}");
    }
}

/// All parts are gone. Also repairs what a killed repair has left, for a container of the reference.
#[test]
fn a_killed_repair_is_completed() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let (veth, ifb) = (host_veth(&result), shared_name(&owner("one", "eth0")));
    let clean = snapshot(&ctx);
    let reference = reference(&ctx);
    let limits = || both(10_000_000, 1_000_000);
    let added = reference.add(&attachment, &config("1.0.0", limits(), Some(&result)));
    let conf = config("1.0.0", limits(), Some(&added));
    let damage = format!("tc qdisc del dev {veth} root; tc qdisc del dev {veth} ingress; ip link del {ifb}");
    ctx.node.sh(&damage).unwrap();
    let repairing = ctx.repairing(REPAIR);
    for point in repairing.kill_points("ADD", &attachment, &conf) {
        ctx.node.sh(&format!("{} || true", damage.replace(';', " 2>&-;"))).unwrap();
        repairing.kill(&point, "ADD", &attachment, &conf);
        repairing.add(&attachment, &conf);
        for each in [&ctx, &reference] {
            each.check(&attachment, &conf);
        }
        ping(&pod);
    }
    reference.del(&attachment, &conf);
    ctx.node
        .sh(&format!("tc qdisc del dev {veth} ingress 2>&-; tc qdisc del dev {veth} root 2>&-; true"))
        .unwrap();
    assert_eq!(clean.diff(&snapshot(&ctx)), "");
}

/// The alias has other rates than the kernel: `ferrule shape` was killed.
#[test]
fn rates_of_the_alias_count_until_add_or_del() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let veth = host_veth(&result);
    let alias = || {
        link(&ctx.node, &veth)
            .get("ifalias")
            .map_or(String::new(), |alias| alias.as_str().unwrap().to_owned())
    };
    let root = || ctx.node.sh(&format!("tc qdisc show dev {veth} root")).unwrap();
    let add = config("1.0.0", both(10_000_000, CONTAINERD), Some(&result));
    let clean = snapshot(&ctx);
    let conf = config("1.0.0", both(10_000_000, CONTAINERD), Some(&ctx.add(&attachment, &add)));
    let reshape = format!("ip link set {veth} alias 'bandwidth ingress=20000000'");
    let error = ctx.mend(REPAIR, &attachment, &conf, &ctx.node, &reshape);
    assert!(error.contains("Rate doesn't match") && root().contains("rate 20Mbit"), "{error} {}", root());
    ctx.mend(REPAIR, &attachment, &conf, &ctx.node, &format!("tc qdisc del dev {veth} root"));
    assert!(root().contains("rate 20Mbit"));
    ctx.add(&attachment, &add);
    assert_eq!(alias(), "");
    assert!(root().contains("rate 10Mbit"));
    ctx.node.sh(&reshape).unwrap();
    assert_ne!(alias(), "");
    ctx.del(&attachment, &conf);
    assert_eq!(alias(), "");
    assert_eq!(clean.diff(&snapshot(&ctx)), "");
}

#[test]
fn what_belongs_to_others_stays() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let (veth, ifb) = (host_veth(&result), shared_name(&owner("one", "eth0")));
    let conf = config("1.0.0", both(10_000_000, CONTAINERD), Some(&result));
    let conf = config("1.0.0", both(10_000_000, CONTAINERD), Some(&ctx.add(&attachment, &conf)));
    for (damage, error) in [
        (format!("tc qdisc replace dev {veth} root handle 7: pfifo"), "already has a root qdisc: pfifo 7:"),
        (
            format!(
                "tc qdisc del dev {veth} root; ip link del {ifb}; ip link add {ifb} type ifb; ip link set {ifb} alias other"
            ),
            "belongs to another link: ifb, alias \"other\"",
        ),
    ] {
        ctx.node.sh(&damage).unwrap();
        let before = snapshot(&ctx);
        let failed = ctx.repairing(REPAIR).fail("ADD", &attachment, &conf);
        assert!(failed.contains(error), "{failed}");
        assert_eq!(before.diff(&snapshot(&ctx)), "", "{damage}");
    }
}

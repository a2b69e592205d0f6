//! DEL from every intermediate state, and DEL of a container that keeps running.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::Duration;

use cni_lab::Place as _;
use cni_lab::Pod;
use cni_lab::testing::{TestContext, succeed};
use common::{CRIO, attached, both, config, host_veth, ifbs, owner, snapshot};
use ferrule_bandwidth::owner::shared_name;
use serde_json::Value;
use serde_json::json;

#[test]
fn del_in_every_state() {
    let named = |result: &Value| config("1.0.0", both(10_000_000, CRIO), Some(result));
    let bare = config("1.0.0", json!(null), None);
    // Limits that ADD refuses, and a prevResult that cannot be decoded.
    let mut broken = config("1.0.0", json!({"ingressRate": 7}), None);
    broken["prevResult"] = json!("x");
    type Prepare = fn(&TestContext, &Pod, &str);
    let states: [(&str, Prepare); 6] = [
        ("as made", |_, _, _| {}),
        ("IFB gone", |ctx, _, _| {
            drop(ctx.node.sh(&format!("ip link del {}", shared_name(&owner("one", "eth0")))).unwrap())
        }),
        ("filter gone", |ctx, _, veth| {
            drop(ctx.node.sh(&format!("tc filter del dev {veth} ingress")).unwrap())
        }),
        ("ingress and root qdisc gone", |ctx, _, veth| {
            drop(
                ctx.node
                    .sh(&format!("tc qdisc del dev {veth} ingress; tc qdisc del dev {veth} root"))
                    .unwrap(),
            );
        }),
        ("interface gone", |_, pod, _| drop(pod.sh("ip link del eth0").unwrap())),
        ("namespace gone", |_, pod, _| pod.delete().unwrap()),
    ];
    for (state, prepare) in states {
        for (given, with_netns) in
            [("all", true), ("all", false), ("bare", true), ("bare", false), ("broken", true)]
        {
            let (ctx, pod, result) = attached("one");
            let before = snapshot(&ctx);
            let veth = host_veth(&result);
            let add = ctx.exec("ADD", &pod.attachment("eth0"), &named(&result));
            let added = succeed(&ctx.node, &add);
            prepare(&ctx, &pod, &veth);
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
                ctx.del(&attachment, &config);
            }
            let input = format!("{state}, {given}, netns {with_netns}");
            assert_eq!(ifbs(&ctx), Vec::<String>::new(), "{input}");
            let is_there = ctx.node.sh(&format!("ip link show {veth}")).is_ok();
            // Without namespace and IFB, DEL cannot find the host's link. The kernel deletes the rest with
            // that link.
            let untraceable =
                !with_netns && matches!(state, "IFB gone" | "filter gone" | "ingress and root qdisc gone");
            if is_there && !matches!(state, "namespace gone" | "interface gone") && !untraceable {
                assert_eq!(before.diff(&snapshot(&ctx)), "", "{input}");
                pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
            }
        }
    }
}

/// A running container loses at most the packets that are queued when DEL removes its limits.
#[test]
fn del_does_not_cut_off_a_running_container() {
    for with_netns in [true, false] {
        let (ctx, pod, result) = attached("one");
        let config = config("1.0.0", both(1_000_000_000, CRIO), Some(&result));
        let mut attachment = pod.attachment("eth0");
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
        for _ in 0..5 {
            attachment.netns = pod.path().to_string_lossy().into_owned();
            ctx.add(&attachment, &config);
            if !with_netns {
                attachment.netns.clear();
            }
            let report = std::thread::scope(|scope| {
                let ping = scope.spawn(|| pod.sh("ping -q -i 0.002 -c 150 10.1.0.1").unwrap());
                std::thread::sleep(Duration::from_millis(120));
                ctx.del(&attachment, &config);
                ping.join().unwrap()
            });
            let received = report.split(" received").next().unwrap().rsplit(' ').next().unwrap();
            assert!(received.parse::<u32>().unwrap() >= 147, "{report}");
        }
    }
}

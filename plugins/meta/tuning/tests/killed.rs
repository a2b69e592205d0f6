//! A runtime may kill the plugin at any time. DEL after that must remove everything and restore the link, and GC must
//! remove everything if DEL is lost. Needs `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Expect as _, assert_unchanged, network_config};
use cni_lab::{FailingCall, Place as _, Snapshot};
use cni_runner::Attachment;
use common::{attached, config, eth0, has_feature, veth};
use serde_json::{Value, json};

fn conf() -> Value {
    let keys = json!({"mac": "c2:00:00:00:00:0a", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77, "offload": {"tso": false}});
    config("1.1.0", &keys)
}

#[test]
fn del_cleans_up_after_killed_calls() {
    let (ctx, pod) = attached();
    // Makes the folder.
    ctx.add(&eth0(&pod), &conf());
    ctx.del(&eth0(&pod), &conf());
    let (node, before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
    for verb in ["ADD", "DEL"] {
        if verb == "DEL" {
            ctx.add(&eth0(&pod), &conf());
        }
        let points = ctx.kill_points(verb, &eth0(&pod), &conf());
        assert!(points.len() > 3, "{verb}: {points:?}");
        ctx.del(&eth0(&pod), &conf());
        for point in points {
            if verb == "DEL" {
                ctx.add(&eth0(&pod), &conf());
            }
            ctx.kill(&point, verb, &eth0(&pod), &conf());
            ctx.del(&eth0(&pod), &conf());
            assert_unchanged(&ctx.node, &node, &format!("{verb} killed {point}"));
            assert_unchanged(&pod, &before, &format!("{verb} killed {point}"));
            assert!(has_feature(&pod, "tx-tcp-segmentation"), "{verb} killed {point}");
        }
    }
}

/// The device may be one of the node, which lives on: a value that DEL could not send is not lost.
#[test]
fn del_restores_what_an_earlier_del_could_not_send() {
    let (ctx, pod) = attached();
    ctx.add(&eth0(&pod), &conf());
    ctx.del(&eth0(&pod), &conf());
    let (node, before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
    ctx.add(&eth0(&pod), &conf());
    let del = ctx.exec("DEL", &eth0(&pod), &conf());
    let mut unsent = FailingCall::all(&ctx.node, &del).unwrap();
    unsent.retain(|call| call.name == "sendto" && call.error == "ENOBUFS");
    assert!(unsent.len() > 2, "{unsent:?}");
    for call in unsent {
        ctx.add(&eth0(&pod), &conf());
        call.make(&ctx.node, &del).unwrap().error();
        ctx.del(&eth0(&pod), &conf());
        assert_unchanged(&ctx.node, &node, &call.to_string());
        assert_unchanged(&pod, &before, &call.to_string());
        assert!(has_feature(&pod, "tx-tcp-segmentation"), "{call}");
    }
}

#[test]
fn gc_cleans_up_after_killed_calls() {
    let (ctx, pod) = attached();
    let gc = network_config("tuning", "1.1.0", &json!({"cni.dev/valid-attachments": []}));
    for verb in ["ADD", "DEL"] {
        ctx.add(&eth0(&pod), &conf());
        for point in ctx.kill_points(verb, &eth0(&pod), &conf()) {
            let lost = veth(&ctx, "lost", "host1");
            if verb == "DEL" {
                ctx.add(&eth0(&lost), &conf());
            }
            ctx.kill(&point, verb, &eth0(&lost), &conf());
            lost.delete().unwrap();
            ctx.succeed("GC", &Attachment::default(), &gc);
            let left = ctx.node.list_dir("/run/cni/tuning").unwrap();
            assert_eq!(left, Vec::<String>::new(), "{verb} killed {point}");
            ctx.node.sh("ip link del host1 2>/dev/null || true").unwrap();
        }
    }
}

//! A runtime may kill the plugin at any time. DEL or GC after that must remove everything. Needs `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{overlay, try_link};
use cni_lab::{TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{assert_nothing_left, config, ours, snapshot};
use serde_json::{Value, json};

fn conf(backend: &str) -> Value {
    config("1.1.0", &json!({"ipMasq": true, "ipMasqBackend": backend}))
}

#[test]
fn del_cleans_up_after_killed_calls() {
    for (backend, verb) in [("nftables", "ADD"), ("nftables", "DEL"), ("iptables", "ADD")] {
        let ctx = ours();
        let before = snapshot(&ctx);
        let (pod, conf) = (ctx.pod("killed"), conf(backend));
        let attachment = pod.attachment("eth0");
        ctx.add(&attachment, &conf);
        if verb == "ADD" {
            ctx.del(&attachment, &conf);
        }
        let points = ctx.kill_points(verb, &attachment, &conf);
        ctx.del(&attachment, &conf);
        for point in points {
            if verb == "DEL" {
                ctx.add(&attachment, &conf);
            }
            ctx.kill(&point, verb, &attachment, &conf);
            ctx.del(&attachment, &conf);
            assert!(try_link(&pod, "eth0").is_none(), "{verb} killed {point}");
            assert_nothing_left(&ctx, &before, &format!("{backend}: {verb} killed {point}"));
        }
    }
}

/// No DEL follows: the pod is deleted, and GC removes what the killed call left.
#[test]
fn gc_cleans_up_after_killed_adds() {
    let (ctx, conf) = (ours(), conf("nftables"));
    let before = snapshot(&ctx);
    let measured = ctx.pod("measured");
    // The first ADD on a node makes more calls: it turns forwarding on and makes host-local's folder.
    ctx.add(&measured.attachment("eth0"), &conf);
    ctx.del(&measured.attachment("eth0"), &conf);
    let points = ctx.kill_points("ADD", &measured.attachment("eth0"), &conf);
    ctx.del(&measured.attachment("eth0"), &conf);
    for point in points {
        let pod = ctx.pod("lost");
        ctx.kill(&point, "ADD", &pod.attachment("eth0"), &conf);
        pod.delete().unwrap();
        ctx.succeed("GC", &Attachment::default(), &overlay(&conf, &json!({"cni.dev/valid-attachments": []})));
        assert!(eventually(TIMEOUT, || before.diff(&snapshot(&ctx)).is_empty()), "killed {point}");
        assert_nothing_left(&ctx, &before, &format!("killed {point}"));
    }
}

//! A runtime may kill the plugin with SIGKILL at any time. DEL after that must remove everything, and so must
//! GC if DEL is lost. These tests kill it before each system call that is visible outside the process, which
//! needs `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Origin, succeed, succeed_silently};
use cni_lab::{KillPoint, Place as _, TIMEOUT, eventually};
use cni_runner::{Attachment, Exec};
use common::{CONTAINERD, NETWORK, add_bridge, attached, both, bridge_only, config, context, ifbs, snapshot};
use serde_json::{Value, json};

#[test]
fn del_cleans_up_after_killed_calls() {
    let (ctx, pod, result) = attached("one");
    let exec = |verb: &str, previous: &Value| {
        let config = config("1.0.0", both(10_000_000, CONTAINERD), Some(previous));
        ctx.exec(verb, &pod.attachment("eth0"), &config)
    };
    let [add, del] = ["ADD", "DEL"].map(|verb| exec(verb, &result));
    let before = snapshot(&ctx);
    let adds = KillPoint::all(&ctx.node, &add).unwrap();
    for kill_point in KillPoint::all(&ctx.node, &del).unwrap() {
        succeed(&ctx.node, &add);
        kill_point.kill(&ctx.node, &del).unwrap();
        succeed_silently(&ctx.node, &del);
        assert_eq!(before.diff(&snapshot(&ctx)), "", "DEL killed {kill_point}");
    }
    for kill_point in adds {
        kill_point.kill(&ctx.node, &add).unwrap();
        succeed_silently(&ctx.node, &del);
        assert_eq!(before.diff(&snapshot(&ctx)), "", "ADD killed {kill_point}");
        // Some runtimes repeat a failed ADD without a DEL.
        kill_point.kill(&ctx.node, &add).unwrap();
        let added = succeed(&ctx.node, &add);
        succeed_silently(&ctx.node, &exec("CHECK", &added));
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
        succeed_silently(&ctx.node, &del);
        assert_eq!(before.diff(&snapshot(&ctx)), "", "ADD killed {kill_point} and tried again");
    }
}

#[test]
fn gc_cleans_up_after_killed_calls() {
    let ctx = context(Origin::Reference);
    let gc = json!({"cniVersion": "1.1.0", "name": NETWORK, "type": "bandwidth",
        "cni.dev/valid-attachments": [], "cni.dev/attachments": []});
    let call_and_delete_the_pod = |verb: &str, make: &mut dyn FnMut(&Exec)| {
        let pod = ctx.pod("lost");
        let result = add_bridge(&ctx, &pod, "eth0");
        let config = config("1.0.0", both(10_000_000, CONTAINERD), Some(&result));
        let exec = |verb| ctx.exec(verb, &pod.attachment("eth0"), &config);
        if verb == "DEL" {
            succeed(&ctx.node, &exec("ADD"));
        }
        make(&exec(verb));
        ctx.runtime().del(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
        pod.delete().unwrap();
        assert!(eventually(TIMEOUT, || ctx.node.sh("ip -o link show type veth").unwrap().is_empty()));
    };
    for verb in ["ADD", "DEL"] {
        let mut kill_points = Vec::new();
        call_and_delete_the_pod(verb, &mut |exec| kill_points = KillPoint::all(&ctx.node, exec).unwrap());
        for kill_point in kill_points {
            call_and_delete_the_pod(verb, &mut |exec| kill_point.kill(&ctx.node, exec).unwrap());
            ctx.succeed("GC", &Attachment::default(), &gc);
            assert_eq!(ifbs(&ctx), Vec::<String>::new(), "{verb} killed {kill_point}");
        }
    }
}

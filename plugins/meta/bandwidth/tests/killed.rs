//! A runtime may kill the plugin with SIGKILL at any time. DEL after that must remove everything, and so must
//! GC if DEL is lost. These tests kill it before each system call that is visible outside the process, which
//! needs `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::{KillPoint, Node, Place as _, TIMEOUT, eventually};
use cni_runner::Exec;
use common::{
    Bins, By, CONTAINERD, NETWORK, attached, both, bridge_only, call, config, ifbs, snapshot, succeed,
};
use serde_json::{Value, json};

#[test]
fn del_cleans_up_after_killed_calls() {
    let (node, pod, result) = attached("one");
    let exec = |verb: &str, previous: &Value| {
        let config = config("1.0.0", both(10_000_000, CONTAINERD), Some(previous));
        call(By::Us, verb, &pod.attachment("eth0"), &config)
    };
    let [add, del] = ["ADD", "DEL"].map(|verb| exec(verb, &result));
    let before = snapshot(&node);
    let adds = KillPoint::all(&node, &add).unwrap();
    for kill_point in KillPoint::all(&node, &del).unwrap() {
        succeed(&node, &add);
        kill_point.kill(&node, &del).unwrap();
        succeed(&node, &del);
        assert_eq!(before.diff(&snapshot(&node)), "", "DEL killed {kill_point}");
    }
    for kill_point in adds {
        kill_point.kill(&node, &add).unwrap();
        succeed(&node, &del);
        assert_eq!(before.diff(&snapshot(&node)), "", "ADD killed {kill_point}");
        // Some runtimes repeat a failed ADD without a DEL.
        kill_point.kill(&node, &add).unwrap();
        let added = succeed(&node, &add).document().unwrap();
        succeed(&node, &exec("CHECK", &added));
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
        succeed(&node, &del);
        assert_eq!(before.diff(&snapshot(&node)), "", "ADD killed {kill_point} and tried again");
    }
}

#[test]
fn gc_cleans_up_after_killed_calls() {
    let node = Node::new().unwrap();
    let bridge = Bins::new(By::Go, By::Us);
    let runtime = bridge.runtime(&node);
    let gc = json!({"cniVersion": "1.1.0", "name": NETWORK, "type": "bandwidth",
        "cni.dev/valid-attachments": [], "cni.dev/attachments": []});
    let gc = Exec::new(common::BANDWIDTH, "GC").stdin(gc.to_string());
    let call_and_delete_the_pod = |verb: &str, make: &mut dyn FnMut(&Exec)| {
        let pod = node.pod("lost").unwrap();
        let result = runtime.add(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
        let config = config("1.0.0", both(10_000_000, CONTAINERD), Some(&result));
        let exec = |verb| call(By::Us, verb, &pod.attachment("eth0"), &config);
        if verb == "DEL" {
            succeed(&node, &exec("ADD"));
        }
        make(&exec(verb));
        runtime.del(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
        pod.delete().unwrap();
        assert!(eventually(TIMEOUT, || node.sh("ip -o link show type veth").unwrap().is_empty()));
    };
    for verb in ["ADD", "DEL"] {
        let mut kill_points = Vec::new();
        call_and_delete_the_pod(verb, &mut |exec| kill_points = KillPoint::all(&node, exec).unwrap());
        for kill_point in kill_points {
            call_and_delete_the_pod(verb, &mut |exec| kill_point.kill(&node, exec).unwrap());
            succeed(&node, &gc);
            assert_eq!(ifbs(&node), Vec::<String>::new(), "{verb} killed {kill_point}");
        }
    }
}

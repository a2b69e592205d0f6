//! A runtime that has lost patience kills the plugin with SIGKILL, at any moment. The DEL after that removes everything, and
//! so does a GC for a DEL that never came. They need `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Bins, By, CONTAINERD, NETWORK, attached, both, bridge_only, call, config, ifbs, look, succeed};
use conformance::fixture::{Moment, Node, PATIENCE, Place as _, eventually};
use conformance::runner::Exec;
use serde_json::{Value, json};

#[test]
fn del_removes_what_killed_calls_left() {
    let (node, pod, result) = attached("one");
    let exec = |verb: &str, previous: &Value| {
        let config = config("1.0.0", both(10_000_000, CONTAINERD), Some(previous));
        call(By::Us, verb, &pod.attachment("eth0"), &config)
    };
    let [add, del] = ["ADD", "DEL"].map(|verb| exec(verb, &result));
    let before = look(&node);
    let adds = Moment::all(&node, &add).unwrap();
    for moment in Moment::all(&node, &del).unwrap() {
        succeed(&node, &add);
        moment.kill(&node, &del).unwrap();
        succeed(&node, &del);
        assert_eq!(before.diff(&look(&node)), "", "DEL killed {moment}");
    }
    for moment in adds {
        moment.kill(&node, &add).unwrap();
        succeed(&node, &del);
        assert_eq!(before.diff(&look(&node)), "", "ADD killed {moment}");
        // Some runtimes try again without a DEL before it.
        moment.kill(&node, &add).unwrap();
        let whole = succeed(&node, &add).document().unwrap();
        succeed(&node, &exec("CHECK", &whole));
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
        succeed(&node, &del);
        assert_eq!(before.diff(&look(&node)), "", "ADD killed {moment} and tried again");
    }
}

#[test]
fn gc_removes_what_killed_calls_left() {
    let node = Node::new().unwrap();
    let bridge = Bins::new(By::Go, By::Us);
    let runtime = bridge.runtime(&node);
    let gc = json!({"cniVersion": "1.1.0", "name": NETWORK, "type": "bandwidth",
        "cni.dev/valid-attachments": [], "cni.dev/attachments": []});
    let gc = Exec::new(common::BANDWIDTH, "GC").stdin(gc.to_string());
    let call_and_lose_the_pod = |verb: &str, make: &mut dyn FnMut(&Exec)| {
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
        assert!(eventually(PATIENCE, || node.sh("ip -o link show type veth").unwrap().is_empty()));
    };
    for verb in ["ADD", "DEL"] {
        let mut moments = Vec::new();
        call_and_lose_the_pod(verb, &mut |exec| moments = Moment::all(&node, exec).unwrap());
        for moment in moments {
            call_and_lose_the_pod(verb, &mut |exec| moment.kill(&node, exec).unwrap());
            succeed(&node, &gc);
            assert_eq!(ifbs(&node), Vec::<String>::new(), "{verb} killed {moment}");
        }
    }
}

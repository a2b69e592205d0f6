//! A runtime that has lost patience kills the plugin with SIGKILL, at any moment. The DEL after that removes everything, and
//! so does a GC for a DEL that never came. They need `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Bins, By, CONTAINERD, NETWORK, attached, both, bridge_only, call, config, ifbs, look, succeed};
use conformance::fixture::{Moment, Node, PATIENCE, Place, eventually};
use conformance::runner::Exec;
use serde_json::{Value, json};

fn moments(place: &impl Place, exec: &Exec) -> Vec<Moment> {
    place.run(|| Moment::all(exec)).unwrap().unwrap()
}

fn kill(place: &impl Place, exec: &Exec, moment: &Moment) {
    place.run(|| moment.kill(exec)).unwrap().unwrap();
}

#[test]
fn del_removes_what_killed_calls_left() {
    let (node, pod, result) = attached("one");
    let exec = |verb: &str, previous: &Value| {
        let config = config("1.0.0", both(10_000_000, CONTAINERD), Some(previous));
        call(By::Us, verb, &pod.attachment("eth0"), &config)
    };
    let [add, del] = ["ADD", "DEL"].map(|verb| exec(verb, &result));
    let before = look(&node);
    let adds = moments(&node, &add);
    for moment in moments(&node, &del) {
        succeed(&node, &add);
        kill(&node, &del, &moment);
        succeed(&node, &del);
        assert_eq!(before.diff(&look(&node)), "", "DEL killed {moment}");
    }
    for moment in adds {
        kill(&node, &add, &moment);
        succeed(&node, &del);
        assert_eq!(before.diff(&look(&node)), "", "ADD killed {moment}");
        // Some runtimes try again without a DEL before it.
        kill(&node, &add, &moment);
        let whole = succeed(&node, &add).document().unwrap();
        succeed(&node, &exec("CHECK", &whole));
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
        succeed(&node, &del);
        assert_eq!(before.diff(&look(&node)), "", "ADD killed {moment} and tried again");
    }
}

#[test]
fn gc_removes_what_killed_adds_left() {
    let node = Node::new().unwrap();
    let bridge = Bins::new(By::Go, By::Us);
    let runtime = bridge.runtime(&node);
    let gc = json!({"cniVersion": "1.1.0", "name": NETWORK, "type": "bandwidth",
        "cni.dev/valid-attachments": [], "cni.dev/attachments": []});
    let gc = Exec::new(common::BANDWIDTH, "GC").stdin(gc.to_string());
    let kill_with_its_pod = |moment: Option<&Moment>| {
        let pod = node.pod("lost").unwrap();
        let result = runtime.add(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
        let config = config("1.0.0", both(10_000_000, CONTAINERD), Some(&result));
        let add = call(By::Us, "ADD", &pod.attachment("eth0"), &config);
        let all = match moment {
            None => moments(&node, &add),
            Some(moment) => {
                kill(&node, &add, moment);
                Vec::new()
            }
        };
        runtime.del(&bridge_only("1.0.0"), &pod.attachment("eth0")).unwrap();
        pod.delete().unwrap();
        assert!(eventually(PATIENCE, || node.sh("ip -o link show type veth").unwrap().is_empty()));
        all
    };
    for moment in kill_with_its_pod(None) {
        kill_with_its_pod(Some(&moment));
        succeed(&node, &gc);
        assert_eq!(ifbs(&node), Vec::<String>::new(), "ADD killed {moment}");
    }
}

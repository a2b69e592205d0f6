//! Processes and round trips of each verb, and concurrent calls.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Origin, TestContext, Trace};
use cni_lab::{Pod, TIMEOUT, eventually};
use common::{CONTAINERD, CRIO, attached, both, config, context, ifbs, network, shaped, snapshot};
use serde_json::Value;
use serde_json::json;

/// No verb starts a process.
#[test]
fn no_helper_processes() {
    let (ctx, pod, result) = attached("one");
    let config = config("1.1.0", both(10_000_000, CRIO), Some(&result));
    for verb in ["ADD", "STATUS", "GC", "DEL", "VERSION"] {
        let calls = trace(&ctx, verb, &pod, &config);
        let started = calls.count(&["execve", "fork", "vfork", "clone", "clone3"]);
        assert_eq!(started, 1, "{verb}: {calls:?}");
    }
}

/// The number of netlink round trips of the verbs that `round_trips.rs` of the e2e tests does not count.
#[test]
fn round_trips() {
    let trips = |calls: &Trace| calls.count(&["sendto", "sendmsg"]);
    let (ctx, pod, result) = attached("one");
    let config = config("1.1.0", both(10_000_000, CRIO), Some(&result));
    let [gc, status] = ["GC", "STATUS"].map(|verb| trips(&trace(&ctx, verb, &pod, &config)));
    println!("round trips: GC with nothing to do {gc}, STATUS {status}");
    assert_eq!((gc, status), (1, 1));
}

/// Traces the system calls of one call that start processes or send to sockets.
fn trace(ctx: &TestContext, verb: &str, pod: &Pod, config: &Value) -> Trace {
    let names = "execve,?fork,?vfork,clone,clone3,sendto,sendmsg";
    Trace::of(&ctx.node, &ctx.exec(verb, &pod.attachment("eth0"), config), names)
}

#[test]
fn thirty_two_concurrent_pods_leave_nothing() {
    let ctx = context(Origin::Ours);
    let network = network("1.0.0", json!({}));
    let pods: Vec<Pod> = (0..32).map(|n| ctx.pod(&format!("pod{n}"))).collect();
    let before = snapshot(&ctx);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| {
                    let attachment = shaped(pod, "eth0", both(10_000_000, CONTAINERD));
                    ctx.runtime().add(&network, &attachment).unwrap();
                });
            }
        });
        assert_eq!(ifbs(&ctx).len(), 32);
        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| {
                    let attachment = shaped(pod, "eth0", both(10_000_000, CONTAINERD));
                    ctx.runtime().check(&network, &attachment).unwrap();
                    ctx.runtime().del(&network, &attachment).unwrap();
                });
            }
        });
        assert!(
            eventually(TIMEOUT, || before.diff(&snapshot(&ctx)).is_empty()),
            "{}",
            before.diff(&snapshot(&ctx))
        );
    }
}

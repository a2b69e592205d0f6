//! Many calls at the same time.

use std::process::Command;
use std::thread;

use serde_json::Value;

use crate::cases::joined;
use crate::kernel;
use crate::outcome::{Stop, TestResult, ensure, skip};
use crate::plugin_under_test::Role;
use crate::test_context::{Target, TestContext};
use cni_lab::Place as _;
use cni_runner::{Attachment, Exec};

/// How many containers are attached at the same time.
const CROWD: usize = 8;

pub(super) fn many(test: &TestContext<'_>) -> TestResult {
    // The first containers make the state that containers share. One of them stays attached.
    let first = targets(test, "first")?;
    let results = all(&first, |target| test.attached(target))?;
    for target in &first {
        let is_there = target.pod.sh(&format!("ip link show {}", target.ifname)).is_ok();
        ensure(
            is_there || test.plugin.role == Role::Ipam,
            "an interface in each container",
            &target.container_id,
        )?;
    }
    let leaving: Vec<_> = first.iter().zip(&results).skip(1).collect();
    all(&leaving, |(target, result)| test.detached(target, result))?;
    let before = test.snapshot()?;

    let second = targets(test, "second")?;
    let (early, late) = second.split_at(CROWD / 2);
    let results = all(early, |target| test.attached(target))?;
    let early: Vec<_> = early.iter().zip(&results).collect();
    let results = thread::scope(|scope| {
        let going = scope.spawn(|| all(&early, |(target, result)| test.detached(target, result)));
        let coming = all(late, |target| test.attached(target));
        joined(going)?;
        coming
    })?;
    let late: Vec<_> = late.iter().zip(&results).collect();
    all(&late, |(target, result)| test.detached(target, result))?;
    for target in &second {
        target.pod.delete()?;
    }
    let changes = test.changes_since(&before)?;
    ensure(changes.is_empty(), "no change on the node", changes)
}

fn targets(test: &TestContext<'_>, name: &str) -> Result<Vec<Target>, Stop> {
    (0..CROWD).map(|number| test.target(&format!("{name}{number}"))).collect()
}

/// Does the same with all items at the same time.
fn all<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R, Stop> + Sync) -> Result<Vec<R>, Stop> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(joined).collect()
    })
}

/// A shell makes and removes links in the container's namespace. The pauses are for the rest of the machine:
/// the kernel has one lock (RTNL) for all links.
pub(super) fn busy_namespace(test: &TestContext<'_>) -> TestResult {
    if !kernel::works("ip link add probe2 type veth peer name probe3")? {
        return skip("this kernel has no link type veth");
    }
    for round in 0..4 {
        let target = test.target(&format!("pod{round}"))?;
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "while :; do ip link add busy0 type veth peer name busy1; ip addr add 192.0.2.1/32 dev busy0; \
             ip link set busy0 up; ip link del busy0; sleep 0.03; done",
        ]);
        let _busy = target.pod.spawn(command)?;
        let result = test.attached(&target)?;
        test.detached(&target, &result)?;
    }
    Ok(())
}

/// containerd calls ADD of loopback at the same time for each pod.
pub(super) fn with_loopback(test: &TestContext<'_>) -> TestResult {
    let loopback = test.neighbour("loopback")?;
    let node = test.node()?;
    for round in 0..4 {
        let target = test.target(&format!("pod{round}"))?;
        let exec = Exec::new(&loopback, "ADD")
            .attachment(&Attachment::new(&target.container_id, &target.netns, "lo"))
            .stdin(r#"{"cniVersion":"0.3.1","name":"cni-loopback","type":"loopback"}"#);
        let result = thread::scope(|scope| -> Result<Value, Stop> {
            let other = scope.spawn(|| node.call(&exec));
            let result = test.attached(&target);
            let other = joined(other)?;
            ensure(other.success(), "loopback to succeed at the same time", other.stdout_text())?;
            result
        })?;
        test.detached(&target, &result)?;
    }
    Ok(())
}

//! Calls that the runtime kills.

use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::process::start;
use crate::cases::{joined, tools::node_in_use};
use crate::outcome::{Stop, TestResult, ensure, skip};
use crate::stub::Reply;
use crate::test_context::{NETWORK, TestContext};
use cni_lab::{Place as _, eventually};

/// When an ADD is killed, in milliseconds after its start.
const KILL_TIMES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Expects that the next calls do not block; other test cases check what a killed ADD leaves behind.
pub(super) fn at_any_time(test: &TestContext<'_>) -> TestResult {
    for time in KILL_TIMES {
        let (target, next) = (test.target(&format!("killed-{time}"))?, test.target(&format!("next-{time}"))?);
        let mut child = start(test, &test.add(&target))?;
        thread::sleep(Duration::from_millis(time));
        child.kill()?;
        child.wait()?;
        test.attached(&next)?;
        test.del(&target, None).run()?;
    }
    Ok(())
}

pub(super) fn holder(test: &TestContext<'_>) -> TestResult {
    crate::kernel::tools(&["flock"])?;
    test.attached(&test.target("neighbour")?)?;
    let file = format!("/var/lib/cni/networks/{NETWORK}/lock");
    let node = test.node()?;
    if node.read_file(&file).is_err() {
        return skip(format!("the plugin has no lock file {file}"));
    }
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec 9<{file}; flock 9 && : > /run/locked && exec sleep 60")]);
    let holder = node.spawn(command)?;
    if !eventually(Duration::from_secs(5), || node.read_file("/run/locked").is_ok()) {
        return Err(Stop::Broken(anyhow::anyhow!("cannot lock {file}")));
    }
    let target = test.target("pod1")?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| test.attached(&target));
        thread::sleep(Duration::from_millis(100));
        let has_waited = !waiting.is_finished();
        drop(holder);
        let result: Result<Value, Stop> = joined(waiting);
        ensure(has_waited, "ADD to wait while another process holds the lock", "it did not")?;
        result.map(drop)
    })
}

pub(super) fn slow_delegate(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let ipam = test.ipam()?;
    let earlier = ipam.calls()?.len();
    ipam.on("ADD", Reply::Slow(1, test.ipam_result()))?;
    let target = test.target("pod1")?;
    let mut child = start(test, &test.add(&target))?;
    let is_called =
        eventually(Duration::from_secs(5), || ipam.calls().is_ok_and(|calls| calls.len() > earlier));
    child.kill()?;
    child.wait()?;
    ensure(is_called, "the delegate to be called", "it was not")?;
    // DEL once while the delegate still runs, and once after its end.
    test.del(&target, None).run()?.ok()?;
    thread::sleep(Duration::from_millis(1200));
    test.del(&target, None).run()?.ok()?;
    ipam.on("ADD", Reply::Json(test.ipam_result()))?;
    let result = test.attached(&target)?;
    let answer = test.detached(&target, &result)?;
    test.unchanged_since(&before, &answer)
}

//! Calls whose runtime loses patience.

use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::process::start;
use crate::fixture::{Place as _, eventually};
use crate::suite::lab::{Lab, NETWORK};
use crate::suite::outcome::{Stop, Trialled, ensure, skip};
use crate::suite::stub::Reply;
use crate::suite::trials::{joined, tools::node_in_use};

/// When an ADD is killed, in milliseconds after its start.
const MOMENTS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// What a killed ADD leaves of itself is another matter: here the next calls, of whatever end, do not wait for it.
pub(super) fn at_any_time(lab: &Lab<'_>) -> Trialled {
    for moment in MOMENTS {
        let (target, next) =
            (lab.target(&format!("killed-{moment}"))?, lab.target(&format!("next-{moment}"))?);
        let mut child = start(lab, &lab.add(&target))?;
        thread::sleep(Duration::from_millis(moment));
        child.kill()?;
        child.wait()?;
        lab.attached(&next)?;
        lab.del(&target, None).run()?;
    }
    Ok(())
}

pub(super) fn holder(lab: &Lab<'_>) -> Trialled {
    crate::suite::kernel::tools(&["flock"])?;
    lab.attached(&lab.target("neighbour")?)?;
    let file = format!("/var/lib/cni/networks/{NETWORK}/lock");
    let node = lab.node()?;
    if node.read_file(&file).is_err() {
        return skip(format!("it has no lock {file}"));
    }
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec 9<{file}; flock 9 && : > /run/locked && exec sleep 60")]);
    let holder = node.spawn(command)?;
    if !eventually(Duration::from_secs(5), || node.read_file("/run/locked").is_ok()) {
        return Err(Stop::Broken(anyhow::anyhow!("the lock cannot be taken")));
    }
    let target = lab.target("pod1")?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lab.attached(&target));
        thread::sleep(Duration::from_millis(100));
        let has_waited = !waiting.is_finished();
        drop(holder);
        let result: Result<Value, Stop> = joined(waiting);
        ensure(has_waited, "ADD to wait while another holds the lock", "it did not")?;
        result.map(drop)
    })
}

pub(super) fn slow_delegate(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let ipam = lab.ipam()?;
    let earlier = ipam.calls()?.len();
    ipam.on("ADD", Reply::Slow(1, lab.ipam_result()))?;
    let target = lab.target("pod1")?;
    let mut child = start(lab, &lab.add(&target))?;
    let is_called =
        eventually(Duration::from_secs(5), || ipam.calls().is_ok_and(|calls| calls.len() > earlier));
    child.kill()?;
    child.wait()?;
    ensure(is_called, "the delegate to be called", "it was not")?;
    // Once while the delegate is still at work, and once after its end.
    lab.del(&target, None).run()?.ok()?;
    thread::sleep(Duration::from_millis(1200));
    lab.del(&target, None).run()?.ok()?;
    ipam.on("ADD", Reply::Json(lab.ipam_result()))?;
    let result = lab.attached(&target)?;
    let answer = lab.detached(&target, &result)?;
    lab.unchanged_since(&before, &answer)
}

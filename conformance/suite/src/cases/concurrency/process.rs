//! When a plugin ends, and which processes it leaves.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use crate::call::{Answer, Call, TIMEOUT};
use crate::outcome::{Stop, TestResult, ensure};
use crate::test_context::TestContext;
use cni_lab::{Place as _, eventually};
use cni_runner::Version;

/// The time limit of a call.
const LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for the kernel to remove ended processes from /proc.
const KERNEL: Duration = Duration::from_millis(50);

/// Starts a call and writes its whole input, without waiting for its end.
pub(super) fn start(test: &TestContext<'_>, call: &Call<'_>) -> Result<Child, Stop> {
    let (mut child, mut stdin) = open(test, call)?;
    // Fails with EPIPE if the plugin has ended.
    let _ = stdin.write_all(&call.input());
    child.stdin = None;
    Ok(child)
}

/// Starts a call without writing its input.
fn open(test: &TestContext<'_>, call: &Call<'_>) -> Result<(Child, ChildStdin), Stop> {
    let mut child = test.spawn(&mut call.exec.to_command())?;
    let stdin = child.stdin.take().context("the plugin has no standard input")?;
    Ok((child, stdin))
}

/// Makes all calls of an attachment's life and passes each answer to `seen`.
fn life(test: &TestContext<'_>, mut seen: impl FnMut(&str, &Answer) -> TestResult) -> TestResult {
    let target = test.target("pod1")?;
    let answer = test.add(&target).run()?;
    let result = answer.result()?;
    seen("ADD", &answer)?;
    if test.version >= Version::V0_4_0 {
        seen("CHECK", &test.check(&target, &result).run()?)?;
    }
    seen("DEL", &test.del(&target, Some(&result)).run()?)?;
    for verb in ["STATUS", "GC"].into_iter().filter(|_| test.version >= Version::V1_1_0) {
        let call = test.call(verb).key("cni.dev/valid-attachments", serde_json::json!([]));
        seen(verb, &call.run()?)?;
    }
    Ok(())
}

/// Finds a plugin's processes by their mount namespace, which is the node's even if they change their network
/// namespace. [`Call::run`] already checks that the output streams are closed.
pub(super) fn none_left(test: &TestContext<'_>) -> TestResult {
    let view = test.node()?.run(|| fs::read_link("/proc/thread-self/ns/mnt"))??;
    let here = || -> BTreeMap<PathBuf, String> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
        let here = processes.filter(|path| fs::read_link(path.join("ns/mnt")).is_ok_and(|its| its == view));
        here.filter_map(|path| Some((path.clone(), fs::read_to_string(path.join("cmdline")).ok()?))).collect()
    };
    let before = here();
    let left = || -> Vec<String> {
        here()
            .into_iter()
            .filter(|(path, _)| !before.contains_key(path))
            .map(|(_, command)| command)
            .collect()
    };
    life(test, |verb, answer| {
        let is_empty = eventually(KERNEL, || left().is_empty());
        answer.ensure(is_empty, format!("no process left by {verb}"), format!("{:?}", left()))
    })
}

pub(super) fn ends(test: &TestContext<'_>) -> TestResult {
    life(test, |verb, answer| {
        let wall = answer.output.wall;
        answer.ensure(wall < LIMIT, format!("{verb} to end within {LIMIT:?}"), format!("{wall:?}"))
    })
}

pub(super) fn waits_for_input(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let call = test.add(&target);
    let input = call.input();
    let (start, rest) = input.split_at(input.len() / 2);
    let (mut child, mut stdin) = open(test, &call)?;
    stdin.write_all(start)?;
    thread::sleep(Duration::from_millis(200));
    let has_ended = child.try_wait()?.is_some();
    let _ = stdin.write_all(rest);
    drop(stdin);
    let is_over = eventually(TIMEOUT, || !matches!(child.try_wait(), Ok(None)));
    if !is_over {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    ensure(!has_ended, "ADD to wait for the rest of its input", "it ended before")?;
    ensure(
        is_over,
        format!("an end within {TIMEOUT:?} of the end of the input"),
        "it was still running and was killed",
    )?;
    ensure(
        output.status.success(),
        "success with an input in two pieces",
        String::from_utf8_lossy(&output.stdout),
    )
}

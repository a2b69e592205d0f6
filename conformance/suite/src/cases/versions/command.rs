//! The operation VERSION.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::call::{Answer, Call};
use crate::outcome::{Stop, TestResult, skip};
use crate::test_context::TestContext;
use cni_lab::eventually;
use cni_runner::Version;

/// How long a plugin may take to answer while its input stays open.
const OPEN: Duration = Duration::from_secs(10);
/// A user ID without privileges.
const NOBODY: u32 = 65534;

/// VERSION as libcni calls it.
fn ask(test: &TestContext<'_>, version: Version) -> Result<Answer, Stop> {
    test.call("VERSION").bytes(json!({"cniVersion": version.to_string()}).to_string()).run()
}

/// The supported versions in an answer; expects `cniVersion` too, all as strings.
fn versions(answer: &Answer) -> Result<Vec<String>, Stop> {
    let object = answer.result()?;
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    answer.ensure(is_text(&object["cniVersion"]), "a string cniVersion", answer.shown())?;
    match object["supportedVersions"].as_array() {
        Some(list) if !list.is_empty() && list.iter().all(is_text) => {
            Ok(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        _ => answer.mismatch("supportedVersions as a non-empty list of strings", answer.shown()),
    }
}

/// The versions that the plugin declares, including those that this suite does not know.
pub(super) fn declared(test: &TestContext<'_>) -> Result<Vec<String>, Stop> {
    versions(&ask(test, test.version)?)
}

pub(super) fn answers(test: &TestContext<'_>) -> TestResult {
    declared(test)?;
    Ok(())
}

/// Also with older versions: a runtime calls VERSION before it knows what the plugin supports.
pub(super) fn echoes(test: &TestContext<'_>) -> TestResult {
    for &version in &test.plugin.versions {
        let answer = ask(test, version)?;
        let echo = answer.result()?["cniVersion"].clone();
        answer.ensure(echo == version.to_string(), format!("cniVersion {version}"), echo)?;
    }
    Ok(())
}

pub(super) fn empty_input(test: &TestContext<'_>) -> TestResult {
    versions(&test.call("VERSION").bytes("").run()?)?;
    Ok(())
}

pub(super) fn junk_input(test: &TestContext<'_>) -> TestResult {
    for junk in [&b"hello"[..], b"{\"cniVersion\":", b"{} {}", b"[]", b"\xff\xfe\x00"] {
        versions(&test.call("VERSION").bytes(junk).run()?)?;
    }
    Ok(())
}

/// The caller gives the plugin a pipe and never closes it.
pub(super) fn open_input(test: &TestContext<'_>) -> TestResult {
    for input in ["", r#"{"cniVersion":"1.0.0"}"#] {
        let call = test.call("VERSION").bytes(input);
        let mut child = test.spawn(&mut call.exec.to_command()).context("start the plugin")?;
        let mut pipe = child.stdin.take().context("take the plugin's standard input")?;
        // Fails with EPIPE if the plugin has ended.
        let _ = pipe.write_all(input.as_bytes());
        let has_ended = eventually(OPEN, || !matches!(child.try_wait(), Ok(None)));
        if !has_ended {
            child.kill().context("kill the plugin")?;
        }
        let answer = call.answered(child.wait_with_output().context("wait for the plugin")?);
        drop(pipe);
        answer.ensure(has_ended, "an answer while standard input stays open", "it was still running")?;
        versions(&answer)?;
    }
    Ok(())
}

/// libcni compares versions number by number and refuses versions that do not have three numbers.
pub(super) fn usable(test: &TestContext<'_>) -> TestResult {
    let answer = ask(test, test.version)?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit());
    for version in versions(&answer)? {
        let parts: Vec<&str> = version.split('.').collect();
        let is_full = parts.len() == 3 && parts.iter().all(|part| is_number(part));
        answer.ensure(is_full, "versions of three numbers", &version)?;
    }
    Ok(())
}

pub(super) fn harmless(test: &TestContext<'_>) -> TestResult {
    let before = test.snapshot()?;
    let answer = ask(test, test.version)?;
    answer.ok()?;
    let diff = before.diff(&test.snapshot()?);
    answer.ensure(diff.is_empty(), "no change on the node", diff)
}

pub(super) fn unprivileged(test: &TestContext<'_>) -> TestResult {
    let call: Call<'_> = test.call("VERSION").bytes("");
    let mut command = call.exec.to_command();
    command.uid(NOBODY).gid(NOBODY);
    match test.spawn(&mut command) {
        Ok(child) => {
            versions(&call.answered(child.wait_with_output().context("wait for the plugin")?))?;
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            skip(format!("the user {NOBODY} may not start {}", test.plugin.binary().display()))
        }
        Err(error) => Err(Stop::Broken(error.into())),
    }
}

/// Expects each operation of the version to succeed; other test cases check the results.
pub(super) fn works(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    if test.version >= Version::V0_4_0 {
        test.check(&target, &result).run()?.ok()?;
    }
    if test.version >= Version::V1_1_0 {
        test.call("STATUS").run()?.ok()?;
    }
    test.detached(&target, &result)?;
    if test.version >= Version::V1_1_0 {
        test.call("GC").run()?.ok()?;
    }
    Ok(())
}

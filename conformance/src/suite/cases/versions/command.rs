//! The operation VERSION.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::fixture::eventually;
use crate::runner::Version;
use crate::suite::call::{Answer, Call};
use crate::suite::outcome::{Stop, TestResult, skip};
use crate::suite::test_context::TestContext;

/// How long a plugin may take to answer while its input stays open. It has nothing to do, so this is plenty.
const OPEN: Duration = Duration::from_secs(10);
/// A user who has no rights, whether there is such an account or not.
const NOBODY: u32 = 65534;

/// VERSION as libcni asks.
fn ask(test: &TestContext<'_>, version: Version) -> Result<Answer, Stop> {
    test.call("VERSION").bytes(json!({"cniVersion": version.to_string()}).to_string()).run()
}

/// The versions in an answer that has them and `cniVersion`, all of them texts.
fn versions(answer: &Answer) -> Result<Vec<String>, Stop> {
    let object = answer.result()?;
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    answer.ensure(is_text(&object["cniVersion"]), "a text cniVersion", answer.shown())?;
    match object["supportedVersions"].as_array() {
        Some(list) if !list.is_empty() && list.iter().all(is_text) => {
            Ok(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        _ => answer.mismatch("supportedVersions, a list of texts that is not empty", answer.shown()),
    }
}

/// What the plugin declares, those versions included that this suite does not know.
pub(super) fn declared(test: &TestContext<'_>) -> Result<Vec<String>, Stop> {
    versions(&ask(test, test.version)?)
}

pub(super) fn answers(test: &TestContext<'_>) -> TestResult {
    declared(test)?;
    Ok(())
}

/// Older ones too: a plugin is asked before it is known which versions it has.
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

/// A caller that lets the plugin inherit a pipe and never looks after it.
pub(super) fn open_input(test: &TestContext<'_>) -> TestResult {
    for input in ["", r#"{"cniVersion":"1.0.0"}"#] {
        let call = test.call("VERSION").bytes(input);
        let mut child = test.spawn(&mut call.exec.to_command()).context("start the plugin")?;
        let mut pipe = child.stdin.take().context("the plugin's standard input")?;
        // A plugin that does not read may be gone already.
        let _ = pipe.write_all(input.as_bytes());
        let has_ended = eventually(OPEN, || !matches!(child.try_wait(), Ok(None)));
        if !has_ended {
            child.kill().context("kill the plugin")?;
        }
        let answer = call.answered(child.wait_with_output().context("wait for the plugin")?);
        drop(pipe);
        answer.ensure(has_ended, "an answer although standard input stays open", "it was still running")?;
        versions(&answer)?;
    }
    Ok(())
}

/// libcni compares versions number by number and refuses those that have not three of them.
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
    answer.ensure(diff.is_empty(), "an unchanged node", diff)
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

/// Whether each operation that the version has works; what the results say is other trials' business.
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

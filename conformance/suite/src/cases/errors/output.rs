//! Exit status and output.

use super::provoked::{failures, provocations};
use crate::call::Answer;
use crate::outcome::{Stop, TestResult};
use crate::test_context::TestContext;
use cni_runner::Version;

/// The answers of an attachment's life: ADD, CHECK and STATUS if the version has them, DEL, GC.
fn life(test: &TestContext<'_>) -> Result<Vec<Answer>, Stop> {
    let target = test.target("pod1")?;
    let added = test.add(&target).run()?;
    let result = added.result()?;
    let mut answers = vec![added];
    if test.version >= Version::V0_4_0 {
        answers.push(test.check(&target, &result).run()?);
    }
    if test.version >= Version::V1_1_0 {
        answers.push(test.call("STATUS").run()?);
    }
    answers.push(test.del(&target, Some(&result)).run()?);
    if test.version >= Version::V1_1_0 {
        answers.push(test.call("GC").run()?);
    }
    Ok(answers)
}

/// Expects one JSON document or nothing on standard output.
fn at_most_one_document(answer: &Answer) -> TestResult {
    if !answer.output.stdout.iter().all(u8::is_ascii_whitespace) {
        answer.document()?;
    }
    Ok(())
}

/// A second DEL, which has nothing to do, must succeed too.
pub(super) fn success_ends_with_zero(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.detached(&target, &result)?;
    test.detached(&target, &result)?;
    Ok(())
}

/// A plugin that prints an error object must exit with another status than 0.
pub(super) fn failure_does_not(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    for provocation in provocations(test, &target) {
        let answer = provocation.call.run()?;
        let said = answer.output.document().unwrap_or_default();
        let is_error = said.get("code").is_some() && said.get("msg").is_some();
        let is_wrong = answer.output.success() && is_error;
        answer.ensure(!is_wrong, "an exit status other than 0, with an error object", answer.shown())?;
        if answer.output.success() {
            // Undo an unexpected success, so that the next call starts from the same state.
            test.del(&target, None).run()?;
        }
    }
    Ok(())
}

pub(super) fn error_objects(test: &TestContext<'_>) -> TestResult {
    for (_, answer) in failures(test)? {
        answer.refused()?;
    }
    Ok(())
}

pub(super) fn error_keys(test: &TestContext<'_>) -> TestResult {
    for (_, answer) in failures(test)? {
        let refusal = answer.refused()?;
        let version = refusal.version.as_deref().unwrap_or_default();
        answer.ensure(!version.is_empty(), "an error object with a string `cniVersion`", answer.shown())?;
        let details = &refusal.object["details"];
        answer.ensure(
            details.is_null() || details.is_string(),
            "`details` as a string or absent",
            details,
        )?;
    }
    Ok(())
}

pub(super) fn one_document_of_failure(test: &TestContext<'_>) -> TestResult {
    for (_, answer) in failures(test)? {
        at_most_one_document(&answer)?;
    }
    Ok(())
}

pub(super) fn one_document_of_success(test: &TestContext<'_>) -> TestResult {
    for answer in life(test)? {
        at_most_one_document(&answer)?;
    }
    Ok(())
}

pub(super) fn result_of_add(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    let result = answer.result()?;
    let parts = ["ip4", "ip6", "ips", "interfaces"];
    answer.ensure(parts.iter().any(|part| !result[part].is_null()), "a result that is not empty", result)
}

pub(super) fn silence(test: &TestContext<'_>) -> TestResult {
    let answers = life(test)?;
    for answer in answers.iter().skip(1).filter(|answer| answer.output.success()) {
        answer.silent()?;
    }
    Ok(())
}

/// Also with variables that enable logging in common libraries.
pub(super) fn no_logs(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let loud = |verb: &str| {
        let call = if verb == "ADD" { test.add(&target) } else { test.call_for(verb, &target) };
        ["RUST_LOG=trace", "RUST_BACKTRACE=1", "GODEBUG=inittrace=1", "DEBUG=1", "LOG_LEVEL=debug"]
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .fold(call, |call, (name, value)| call.var(name, value))
    };
    let result = loud("ADD").run()?.result()?;
    if test.version >= Version::V0_4_0 {
        at_most_one_document(&loud("CHECK").previous(&result).run()?)?;
    }
    at_most_one_document(&loud("DEL").run()?)?;
    loud("ADD").bytes("hello").run()?.refused()?;
    Ok(())
}

/// Callers discard standard error if there is an error object, so the object must name the cause.
pub(super) fn telling(test: &TestContext<'_>) -> TestResult {
    for (provocation, answer) in failures(test)? {
        if let Some(name) = provocation.names {
            answer.refused()?.mentions(name)?;
        }
    }
    Ok(())
}

//! Delegates that fail, and plugins that fail after their delegate succeeded.

use serde_json::{Value, json};

use crate::call::Answer;
use crate::layout;
use crate::outcome::{TestResult, skip};
use crate::stub::Reply;
use crate::test_context::TestContext;

/// Expects that ADD failed and that the delegate's DEL was called after its ADD.
fn undone(test: &TestContext<'_>, answer: &Answer) -> TestResult {
    answer.refused()?;
    let verbs = test.ipam()?.verbs()?;
    answer.ensure(verbs == ["ADD", "DEL"], "calls of the delegate's ADD, then DEL", format!("{verbs:?}"))
}

pub(super) fn refused_add(test: &TestContext<'_>) -> TestResult {
    test.ipam()?.on("ADD", Reply::Error { code: 111, msg: "the pool is empty", status: 1 })?;
    let answer = test.add(&test.target("pod1")?).run()?;
    undone(test, &answer)
}

/// Expects the delegate's DEL after an ADD that failed because of this reply. Skips the test case if the
/// plugin accepts the reply.
fn called_off(test: &TestContext<'_>, reply: Value) -> TestResult {
    test.ipam()?.on("ADD", Reply::Json(reply))?;
    let answer = test.add(&test.target("pod1")?).run()?;
    if answer.output.success() {
        return skip("the plugin accepts the delegate's result");
    }
    undone(test, &answer)
}

pub(super) fn no_address(test: &TestContext<'_>) -> TestResult {
    called_off(test, json!({"cniVersion": test.version.to_string(), "ips": []}))
}

/// The kernel refuses a route whose gateway is not reachable on any link.
pub(super) fn impossible_route(test: &TestContext<'_>) -> TestResult {
    let model = json!({
        "ips": [{"address": "10.77.0.2/24", "gateway": "10.77.0.1"}],
        "routes": [{"dst": "198.51.100.0/24", "gw": "203.0.113.77"}]});
    called_off(test, layout::render(&model, test.version))
}

pub(super) fn no_version(test: &TestContext<'_>) -> TestResult {
    let mut reply = test.ipam_result();
    if let Some(members) = reply.as_object_mut() {
        members.remove("cniVersion");
    }
    test.ipam()?.on("ADD", Reply::Json(reply))?;
    let answer = test.add(&test.target("pod1")?).run()?;
    let addresses = layout::addresses(&answer.result()?);
    answer.ensure(
        addresses == ["10.77.0.2/24"],
        "the delegate's address, 10.77.0.2/24",
        format!("{addresses:?}"),
    )
}

pub(super) fn null(test: &TestContext<'_>) -> TestResult {
    test.ipam()?.on("ADD", Reply::Json(Value::Null))?;
    let answer = test.add(&test.target("pod1")?).run()?;
    if answer.output.success() { answer.result().map(drop) } else { answer.refused().map(drop) }
}

pub(super) fn crash(test: &TestContext<'_>) -> TestResult {
    test.ipam()?.on("ADD", Reply::Crash)?;
    test.add(&test.target("pod1")?).run()?.refused()?;
    Ok(())
}

pub(super) fn junk(test: &TestContext<'_>) -> TestResult {
    let replies = [("", 0), ("hello", 0), ("[1]", 0), ("{\"ips\": ", 0), ("hello", 3), ("", 1)];
    for (number, (text, status)) in replies.into_iter().enumerate() {
        test.ipam()?.on("ADD", Reply::Text(text, status))?;
        test.add(&test.target(&format!("pod{number}"))?).run()?.refused()?;
    }
    Ok(())
}

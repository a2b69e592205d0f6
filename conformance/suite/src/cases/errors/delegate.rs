//! Errors and logs of a delegate.

use serde_json::json;

use super::codes::is_allowed;
use crate::call::{Answer, Refusal};
use crate::outcome::{Stop, TestResult, skip};
use crate::stub::Reply;
use crate::test_context::TestContext;
use cni_runner::Version;

/// The message of a stub's error.
const MESSAGE: &str = "the pool is being moved";
/// A code of the specification and a plugin's own code.
const CODES: [u64; 2] = [11, 142];

fn crashed(test: &TestContext<'_>) -> Result<(Answer, Refusal), Stop> {
    test.ipam()?.on("ADD", Reply::Crash)?;
    let answer = test.add(&test.target("pod1")?).run()?;
    let refusal = answer.refused()?;
    Ok((answer, refusal))
}

pub(super) fn crash(test: &TestContext<'_>) -> TestResult {
    crashed(test)?;
    Ok(())
}

pub(super) fn code_of_a_crash(test: &TestContext<'_>) -> TestResult {
    let (answer, refusal) = crashed(test)?;
    answer.ensure(
        is_allowed(refusal.code),
        "a code of the specification or a code from 100 on",
        answer.shown(),
    )
}

/// As libcni, a plugin that runs a list of plugins puts the name of the failed one before the message.
fn unchanged(test: &TestContext<'_>, answer: &Answer, code: u64) -> TestResult {
    let refusal = answer.refused()?;
    let named = test.plugin.description.config.contains_key("plugins");
    let is_message = refusal.msg == MESSAGE
        || (named
            && refusal.msg.starts_with("plugin type=")
            && refusal.msg.ends_with(&format!(": {MESSAGE}")));
    let is_same = refusal.code == code && is_message && refusal.details == "from the stub";
    answer.ensure(
        is_same,
        format!("code {code}, message {MESSAGE:?}, details \"from the stub\""),
        answer.shown(),
    )
}

pub(super) fn error_at_add(test: &TestContext<'_>) -> TestResult {
    for code in CODES {
        test.ipam()?.on("ADD", Reply::Error { code, msg: MESSAGE, status: 3 })?;
        unchanged(test, &test.add(&test.target(&format!("pod{code}"))?).run()?, code)?;
    }
    Ok(())
}

pub(super) fn error_at_check(test: &TestContext<'_>) -> TestResult {
    if test.version < Version::V0_4_0 {
        return skip("CHECK begins with version 0.4.0");
    }
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    for code in CODES {
        test.ipam()?.on("CHECK", Reply::Error { code, msg: MESSAGE, status: 3 })?;
        unchanged(test, &test.check(&target, &result).run()?, code)?;
    }
    Ok(())
}

pub(super) fn logs(test: &TestContext<'_>) -> TestResult {
    test.ipam()?.on("ADD", Reply::Talkative("{\"level\": \"info\"}", test.ipam_result()))?;
    test.attached(&test.target("pod1")?)?;
    Ok(())
}

pub(super) fn missing(test: &TestContext<'_>) -> TestResult {
    let call = test.add(&test.target("pod1")?).key("ipam", json!({"type": "no-such-ipam"}));
    call.run()?.refused()?.mentions("no-such-ipam")?;
    Ok(())
}

//! What many trials do with one attachment.

use serde_json::{Value, json};

use crate::fixture::Snapshot;
use crate::runner::Version;
use crate::suite::call::Call;
use crate::suite::outcome::{Stop, TestResult, ensure};
use crate::suite::test_context::{Target, TestContext};

/// Makes ADD, CHECK and DEL, each changed in the same way. ADD and DEL have to succeed.
pub(super) fn whole_life(
    test: &TestContext<'_>,
    target: &Target,
    change: impl for<'c> Fn(Call<'c>) -> Call<'c>,
) -> Result<Value, Stop> {
    let result = change(test.add(target)).run()?.result()?;
    checked(test, target, &result, &change)?;
    change(test.del(target, Some(&result))).run()?.ok()?;
    Ok(result)
}

/// Makes a CHECK, if the version has it, that has to succeed if it does so unchanged. Whether the plugin finds its own work
/// in order is the matter of other trials.
pub(super) fn checked(
    test: &TestContext<'_>,
    target: &Target,
    result: &Value,
    change: impl for<'c> Fn(Call<'c>) -> Call<'c>,
) -> TestResult {
    if test.version < Version::V0_4_0 || !test.check(target, result).run()?.output.success() {
        return Ok(());
    }
    change(test.check(target, result)).run()?.ok()
}

/// The calls that a runtime makes for an attachment that is there: ADD, CHECK if the version has it, and DEL.
pub(super) fn calls<'l>(test: &'l TestContext<'_>, target: &Target, result: &Value) -> Vec<Call<'l>> {
    let mut calls = vec![test.add(target)];
    if test.version >= Version::V0_4_0 {
        calls.push(test.check(target, result));
    }
    calls.push(test.del(target, Some(result)));
    calls
}

/// Keys that win over what a runtime sends.
const FIXED: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

/// A node of its own with a container, for whose ADD the runtime sent these values.
pub(super) fn node_with(test: &TestContext<'_>, values: &Value) -> Result<Snapshot, Stop> {
    let test = TestContext::new(test.plugin, test.version, true)?;
    let target = test.target("pod1")?;
    let mut call = test.add(&target).key("runtimeConfig", values.clone());
    call.config.retain(|key, _| !FIXED.contains(&key.as_str()));
    call.run()?.result()?;
    test.snapshot()
}

/// Two values of runtimeConfig that have to come to the same on the node, and to something.
pub(super) fn same_effect(test: &TestContext<'_>, usual: &Value, other: &Value) -> TestResult {
    let expected = node_with(test, usual)?;
    let works = !node_with(test, &json!({}))?.diff(&expected).is_empty();
    ensure(works, format!("something on the node for {usual}"), "no change")?;
    let diff = expected.diff(&node_with(test, other)?);
    ensure(diff.is_empty(), format!("for {other} the same as for {usual}"), diff)
}

//! Sequences of calls for one attachment that many test cases use.

use serde_json::{Value, json};

use crate::call::Call;
use crate::outcome::{Stop, TestResult, ensure};
use crate::test_context::{Target, TestContext};
use cni_lab::Snapshot;
use cni_runner::Version;

/// Calls ADD, CHECK and DEL, each modified by `change`. ADD and DEL must succeed, CHECK as in [`checked`].
pub(super) fn add_check_del(
    test: &TestContext<'_>,
    target: &Target,
    change: impl for<'c> Fn(Call<'c>) -> Call<'c>,
) -> Result<Value, Stop> {
    let result = change(test.add(target)).run()?.result()?;
    checked(test, target, &result, &change)?;
    change(test.del(target, Some(&result))).run()?.ok()?;
    Ok(result)
}

/// Calls CHECK, if the version has it, unmodified and then modified by `change`. If the unmodified CHECK
/// succeeds, the modified one must succeed too; other test cases check CHECK itself.
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

/// The calls for an existing attachment: ADD, CHECK if the version has it, and DEL.
pub(super) fn calls<'l>(test: &'l TestContext<'_>, target: &Target, result: &Value) -> Vec<Call<'l>> {
    let mut calls = vec![test.add(target)];
    if test.version >= Version::V0_4_0 {
        calls.push(test.check(target, result));
    }
    calls.push(test.del(target, Some(result)));
    calls
}

/// Keys of the configuration that override runtimeConfig.
const FIXED: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

/// The state of a new node after an ADD with these values in runtimeConfig.
pub(super) fn node_with(test: &TestContext<'_>, values: &Value) -> Result<Snapshot, Stop> {
    let test = TestContext::new(test.plugin, test.version, true)?;
    let target = test.target("pod1")?;
    let mut call = test.add(&target).key("runtimeConfig", values.clone());
    call.config.retain(|key, _| !FIXED.contains(&key.as_str()));
    call.run()?.result()?;
    test.snapshot()
}

/// Expects two values of runtimeConfig to have the same effect on the node, and an effect at all.
pub(super) fn same_effect(test: &TestContext<'_>, usual: &Value, other: &Value) -> TestResult {
    let expected = node_with(test, usual)?;
    let works = !node_with(test, &json!({}))?.diff(&expected).is_empty();
    ensure(works, format!("an effect of {usual} on the node"), "no change")?;
    let diff = expected.diff(&node_with(test, other)?);
    ensure(diff.is_empty(), format!("the same effect of {other} as of {usual}"), diff)
}

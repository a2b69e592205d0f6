//! What many trials do with one attachment.

use serde_json::{Value, json};

use crate::fixture::Snapshot;
use crate::runner::Version;
use crate::suite::call::Call;
use crate::suite::lab::{Lab, Target};
use crate::suite::outcome::{Stop, Trialled, ensure};

/// Makes ADD, CHECK and DEL, each changed in the same way. ADD and DEL have to succeed.
pub(super) fn whole_life(
    lab: &Lab<'_>,
    target: &Target,
    change: impl for<'c> Fn(Call<'c>) -> Call<'c>,
) -> Result<Value, Stop> {
    let result = change(lab.add(target)).run()?.result()?;
    checked(lab, target, &result, &change)?;
    change(lab.del(target, Some(&result))).run()?.ok()?;
    Ok(result)
}

/// Makes a CHECK, if the version has it, that has to succeed if it does so unchanged. Whether the plugin finds its own work
/// in order is the matter of other trials.
pub(super) fn checked(
    lab: &Lab<'_>,
    target: &Target,
    result: &Value,
    change: impl for<'c> Fn(Call<'c>) -> Call<'c>,
) -> Trialled {
    if lab.version < Version::V0_4_0 || !lab.check(target, result).run()?.output.success() {
        return Ok(());
    }
    change(lab.check(target, result)).run()?.ok()
}

/// The calls that a runtime makes for an attachment that is there: ADD, CHECK if the version has it, and DEL.
pub(super) fn calls<'l>(lab: &'l Lab<'_>, target: &Target, result: &Value) -> Vec<Call<'l>> {
    let mut calls = vec![lab.add(target)];
    if lab.version >= Version::V0_4_0 {
        calls.push(lab.check(target, result));
    }
    calls.push(lab.del(target, Some(result)));
    calls
}

/// Keys that win over what a runtime sends.
const FIXED: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

/// A node of its own with a container, for whose ADD the runtime sent these values.
pub(super) fn node_with(lab: &Lab<'_>, values: &Value) -> Result<Snapshot, Stop> {
    let lab = Lab::new(lab.subject, lab.version, true)?;
    let target = lab.target("pod1")?;
    let mut call = lab.add(&target).key("runtimeConfig", values.clone());
    call.config.retain(|key, _| !FIXED.contains(&key.as_str()));
    call.run()?.result()?;
    lab.snapshot()
}

/// Two values of runtimeConfig that have to come to the same on the node, and to something.
pub(super) fn same_effect(lab: &Lab<'_>, usual: &Value, other: &Value) -> Trialled {
    let expected = node_with(lab, usual)?;
    let works = !node_with(lab, &json!({}))?.diff(&expected).is_empty();
    ensure(works, format!("something on the node for {usual}"), "no change")?;
    let diff = expected.diff(&node_with(lab, other)?);
    ensure(diff.is_empty(), format!("for {other} the same as for {usual}"), diff)
}

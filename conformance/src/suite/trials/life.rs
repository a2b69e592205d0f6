//! What many trials do with one attachment.

use serde_json::Value;

use crate::fixture::Snapshot;
use crate::runner::Version;
use crate::suite::call::{Answer, Call};
use crate::suite::lab::{Lab, Target};
use crate::suite::outcome::{Stop, Trialled};

/// Makes ADD, CHECK if the version has it, and DEL, each changed in the same way; all of them have to succeed.
pub(super) fn whole_life(
    lab: &Lab<'_>,
    target: &Target,
    change: impl for<'c> Fn(Call<'c>) -> Call<'c>,
) -> Result<Value, Stop> {
    let result = change(lab.add(target)).run()?.result()?;
    if lab.version >= Version::V0_4_0 {
        change(lab.check(target, &result)).run()?.ok()?;
    }
    change(lab.del(target, Some(&result))).run()?.ok()?;
    Ok(result)
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

/// A fault of a call that has changed the node, but for host-local's note of the address that it gave last.
pub(super) fn unchanged(lab: &Lab<'_>, before: &Snapshot, answer: &Answer) -> Trialled {
    let diff =
        before.clone().ignoring(&["last_reserved_ip"]).diff(&lab.snapshot()?.ignoring(&["last_reserved_ip"]));
    answer.ensure(diff.is_empty(), "an unchanged node", diff)
}

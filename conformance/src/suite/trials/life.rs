//! What many trials do with one attachment.

use serde_json::Value;

use crate::runner::Version;
use crate::suite::call::Call;
use crate::suite::lab::{Lab, Target};
use crate::suite::outcome::{Stop, Trialled};

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

//! ADD with a result that has all kinds of entries.

use serde_json::{Map, Value, json};

use crate::call::{Answer, Call};
use crate::kernel;
use crate::layout;
use crate::outcome::{Stop, TestResult, skip};
use crate::plugin_under_test::Role;
use crate::stub::Reply;
use crate::test_context::{Target, TestContext};
use cni_lab::Place as _;
use cni_runner::Version;

/// An IPAM plugin's result in the layout of 1.1.0, with both families, routes and DNS.
pub(super) fn model() -> Value {
    json!({
        "ips": [
            {"address": "10.77.0.9/24", "gateway": "10.77.0.1"},
            {"address": "fd00:77::9/64", "gateway": "fd00:77::1"}],
        "routes": [
            {"dst": "0.0.0.0/0"},
            {"dst": "198.51.100.0/24", "gw": "10.77.0.1"},
            {"dst": "::/0"},
            {"dst": "2001:db8:7::/48", "gw": "fd00:77::1"}],
        "dns": {"nameservers": ["10.77.0.1"], "domain": "trial.example", "search": ["example"], "options": ["ndots:5"]}})
}

/// Skips the test case on a machine without IPv6.
fn has_ipv6() -> TestResult {
    match kernel::works("ip addr add fd00:77::5/128 dev lo")? {
        true => Ok(()),
        false => skip("this machine has no IPv6"),
    }
}

/// A container without duplicate address detection, so that IPv6 addresses are usable at once.
pub(super) fn target(test: &TestContext<'_>, name: &str) -> Result<Target, Stop> {
    has_ipv6()?;
    let at_once = "for name in all default; do echo 0 > /proc/sys/net/ipv6/conf/$name/accept_dad; done";
    test.node()?.sh(at_once)?;
    let target = test.target(name)?;
    target.pod.sh(at_once)?;
    Ok(target)
}

/// The `prevResult` for a chained plugin, in the layout of 1.1.0: the real interface, and the entries of
/// [`model`].
pub(super) fn previous_model(target: &Target) -> Value {
    let (mut model, previous) = (model(), target.previous.clone().unwrap_or_default());
    model["interfaces"] = previous["interfaces"].clone();
    if let Some(ips) = model["ips"].as_array_mut() {
        ips.iter_mut().for_each(|ip| ip["interface"] = json!(1));
        // The first address is the real one of the interface.
        if let (Some(first), Some(real)) = (ips.first_mut(), layout::list(&previous, "ips").next()) {
            first["address"] = real["address"].clone();
            first["gateway"] = real["gateway"].clone();
            model["routes"][1]["gw"] = real["gateway"].clone();
        }
    }
    model
}

/// An ADD that gets this result, from the IPAM plugin or as `prevResult`. Loopback and IPAM plugins get none.
pub(super) fn handing<'a>(
    test: &'a TestContext<'a>,
    target: &Target,
    result: &Value,
) -> Result<Call<'a>, Stop> {
    match test.plugin.role {
        Role::Chained => Ok(test.call_for("ADD", target).previous(result)),
        _ => {
            if test.plugin.delegates {
                test.ipam()?.on("ADD", Reply::Json(result.clone()))?;
            }
            Ok(test.add(target))
        }
    }
}

/// The result that an ADD for this target gets, in the layout of 1.1.0.
pub(super) fn model_for(test: &TestContext<'_>, target: &Target) -> Value {
    if test.plugin.role == Role::Chained { previous_model(target) } else { model() }
}

/// Calls ADD, which must succeed, with both families, routes and DNS in the test's version.
pub(super) fn add(test: &TestContext<'_>) -> Result<(Target, Answer, Value), Stop> {
    let target = target(test, "pod1")?;
    let answer = handing(test, &target, &layout::render(&model_for(test, &target), test.version))?.run()?;
    let result = answer.result()?;
    Ok((target, answer, result))
}

/// Skips the test case unless the plugin gets a result from an IPAM plugin or as `prevResult`.
pub(super) fn is_handed_something(test: &TestContext<'_>) -> TestResult {
    match test.plugin.delegates || test.plugin.role == Role::Chained {
        true => Ok(()),
        false => skip("the plugin gets no result of another plugin"),
    }
}

/// Addresses, routes and DNS of a result, without empty parts, interface indices and version.
pub(super) fn parts(result: &Value) -> Value {
    let mut parts = layout::normalised(result);
    if let Some(members) = parts.as_object_mut() {
        members.remove("cniVersion");
        members.remove("interfaces");
    }
    for ip in parts.get_mut("ips").and_then(Value::as_array_mut).into_iter().flatten() {
        ip.as_object_mut().map(|ip: &mut Map<String, Value>| ip.remove("interface"));
    }
    parts
}

/// A number for each result layout.
fn layout_of(version: Version) -> u8 {
    match version {
        version if version < Version::V0_3_0 => 0,
        version if version < Version::V1_0_0 => 1,
        _ => 2,
    }
}

/// Whether the results of two versions have different layouts.
pub(super) fn has_other_layout(one: Version, other: Version) -> bool {
    layout_of(one) != layout_of(other)
}

/// The declared versions with the same result layout as this version.
pub(super) fn family(test: &TestContext<'_>, version: Version) -> Vec<Version> {
    let declared = test.plugin.versions.iter().copied();
    declared.filter(|other| !has_other_layout(*other, version)).collect()
}

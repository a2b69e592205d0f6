//! An ADD with much to say.

use serde_json::{Map, Value, json};

use crate::fixture::Place as _;
use crate::runner::Version;
use crate::suite::call::{Answer, Call};
use crate::suite::kernel;
use crate::suite::layout;
use crate::suite::outcome::{Stop, TestResult, skip};
use crate::suite::plugin_under_test::Role;
use crate::suite::stub::Reply;
use crate::suite::test_context::{Target, TestContext};

/// A result of an IPAM plugin as 1.1.0 knows it, with both families, routes and DNS.
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

/// Ends a trial on a machine without IPv6.
fn has_ipv6() -> TestResult {
    match kernel::works("ip addr add fd00:77::5/128 dev lo")? {
        true => Ok(()),
        false => skip("this machine has no IPv6"),
    }
}

/// A container where an IPv6 address can be used at once, and not after a second in which it is searched elsewhere.
pub(super) fn target(test: &TestContext<'_>, name: &str) -> Result<Target, Stop> {
    has_ipv6()?;
    let at_once = "for name in all default; do echo 0 > /proc/sys/net/ipv6/conf/$name/accept_dad; done";
    test.node()?.sh(at_once)?;
    let target = test.target(name)?;
    target.pod.sh(at_once)?;
    Ok(target)
}

/// What a chained plugin gets: the real interface, and what [`model`] has besides, as 1.1.0 knows it.
pub(super) fn previous_model(target: &Target) -> Value {
    let (mut model, previous) = (model(), target.previous.clone().unwrap_or_default());
    model["interfaces"] = previous["interfaces"].clone();
    if let Some(ips) = model["ips"].as_array_mut() {
        ips.iter_mut().for_each(|ip| ip["interface"] = json!(1));
        // The first is the one that the interface has.
        if let (Some(first), Some(real)) = (ips.first_mut(), layout::list(&previous, "ips").next()) {
            first["address"] = real["address"].clone();
            first["gateway"] = real["gateway"].clone();
            model["routes"][1]["gw"] = real["gateway"].clone();
        }
    }
    model
}

/// The call of an ADD to which a result in the shape of a version is handed in: by the IPAM plugin, or as that of the
/// plugins before. Loopback and IPAM plugins get none.
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

/// What is handed in to an ADD in this target, as 1.1.0 knows it.
pub(super) fn model_for(test: &TestContext<'_>, target: &Target) -> Value {
    if test.plugin.role == Role::Chained { previous_model(target) } else { model() }
}

/// An ADD that has to succeed and gets both families, routes and DNS handed in, in the lab's version.
pub(super) fn add(test: &TestContext<'_>) -> Result<(Target, Answer, Value), Stop> {
    let target = target(test, "pod1")?;
    let answer = handing(test, &target, &layout::render(&model_for(test, &target), test.version))?.run()?;
    let result = answer.result()?;
    Ok((target, answer, result))
}

/// Whether something is handed in to the plugin at all.
pub(super) fn is_handed_something(test: &TestContext<'_>) -> TestResult {
    match test.plugin.delegates || test.plugin.role == Role::Chained {
        true => Ok(()),
        false => skip("no result is handed in to it"),
    }
}

/// Addresses, routes and DNS of a result, without what is empty, which interface has which address, and the version.
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

/// A number for each shape of results.
fn layout_of(version: Version) -> u8 {
    match version {
        version if version < Version::V0_3_0 => 0,
        version if version < Version::V1_0_0 => 1,
        _ => 2,
    }
}

/// Whether results of two versions look different.
pub(super) fn has_other_layout(one: Version, other: Version) -> bool {
    layout_of(one) != layout_of(other)
}

/// The versions that the plugin has whose results look as those of this one. It cannot know what came after it.
pub(super) fn family(test: &TestContext<'_>, version: Version) -> Vec<Version> {
    let declared = test.plugin.versions.iter().copied();
    declared.filter(|other| !has_other_layout(*other, version)).collect()
}

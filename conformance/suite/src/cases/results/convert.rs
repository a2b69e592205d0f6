//! Conversion of results from other versions.

use serde_json::{Value, json};

use super::rich;
use crate::call::Answer;
use crate::layout;
use crate::outcome::{Stop, TestResult, skip};
use crate::plugin_under_test::Role;
use crate::test_context::TestContext;
use cni_runner::Version;

/// One version of each result layout.
const LAYOUTS: [Version; 3] = [Version::V0_1_0, Version::V0_3_0, Version::V1_0_0];

/// Expects the addresses, routes and DNS of a model in an answer. A plugin that makes interfaces may drop DNS
/// here; RES-18 covers that.
fn same_parts(test: &TestContext<'_>, answer: &Answer, model: &Value, from: Version) -> TestResult {
    let (mut wanted, seen) =
        (rich::parts(&layout::render(model, test.version)), rich::parts(&answer.result()?));
    if test.plugin.role == Role::Interface && seen["dns"].is_null() {
        wanted.as_object_mut().map(|wanted| wanted.remove("dns"));
    }
    answer.ensure(wanted == seen, format!("the content given in {from}: {wanted}"), seen)
}

/// The IPAM plugin returns the model in each of these other versions.
fn delegated(test: &TestContext<'_>, from: &[Version], model: &Value) -> TestResult {
    let others: Vec<Version> = from.iter().copied().filter(|version| *version != test.version).collect();
    if others.is_empty() {
        return skip("the plugin declares no other version of this result layout");
    }
    for (number, version) in others.into_iter().enumerate() {
        let target = rich::target(test, &format!("pod{number}"))?;
        test.ipam_gives(model, version)?;
        let mut call = test.add(&target);
        // The reference's bridge can be the gateway, and masquerade, for one subnet of a family only.
        for key in ["isGateway", "ipMasq"] {
            call.config.entry(key).and_modify(|value| *value = json!(false));
        }
        let answer = call.run()?;
        same_parts(test, &answer, model, version)?;
        // Release the addresses, which the next container gets again.
        call.exec.command = "DEL".to_owned();
        call.run()?;
    }
    Ok(())
}

/// A model with more addresses of a family than 0.1.0 and 0.2.0 allow.
fn many_addresses() -> Value {
    let mut model = rich::model();
    model["ips"] = json!([
        {"address": "fd00:77::9/64", "gateway": "fd00:77::1"},
        {"address": "10.77.0.9/24", "gateway": "10.77.0.1"},
        {"address": "10.78.0.9/24", "gateway": "10.78.0.1"},
        {"address": "fd00:78::9/64", "gateway": "fd00:78::1"}]);
    model
}

pub(super) fn between_oldest(test: &TestContext<'_>) -> TestResult {
    delegated(test, &rich::family(test, Version::V0_1_0), &rich::model())
}

pub(super) fn from_oldest(test: &TestContext<'_>) -> TestResult {
    delegated(test, &rich::family(test, Version::V0_1_0), &rich::model())
}

pub(super) fn middle_to_oldest(test: &TestContext<'_>) -> TestResult {
    delegated(test, &rich::family(test, Version::V0_3_0), &many_addresses())
}

pub(super) fn newest_to_oldest(test: &TestContext<'_>) -> TestResult {
    delegated(test, &rich::family(test, Version::V1_0_0), &many_addresses())
}

pub(super) fn from_middle(test: &TestContext<'_>) -> TestResult {
    delegated(test, &rich::family(test, Version::V0_3_0), &many_addresses())
}

pub(super) fn from_newest(test: &TestContext<'_>) -> TestResult {
    delegated(test, &rich::family(test, Version::V1_0_0), &many_addresses())
}

pub(super) fn nothing_to_oldest(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let empty = json!({"ips": [], "routes": [{"dst": "0.0.0.0/0"}]});
    test.ipam_gives(&empty, Version::V0_4_0)?;
    test.add(&target).run()?.refused()?;
    Ok(())
}

/// Expects that a chained plugin has passed on `prevResult`; it may have appended interfaces.
fn handed_on(test: &TestContext<'_>, answer: &Answer, model: &Value, from: Version) -> TestResult {
    same_parts(test, answer, model, from)?;
    let (wanted, seen) = (layout::render(model, test.version), answer.result()?);
    let interfaces: Vec<&Value> = layout::list(&seen, "interfaces").collect();
    let given: Vec<&Value> = layout::list(&wanted, "interfaces").collect();
    answer.ensure(
        interfaces.starts_with(&given),
        format!("interfaces that start with those of prevResult: {}", wanted["interfaces"]),
        &seen["interfaces"],
    )?;
    let index = |result: &Value| -> Vec<Value> {
        layout::list(result, "ips").map(|ip| ip["interface"].clone()).collect()
    };
    answer.ensure(index(&wanted) == index(&seen), "addresses on the same interfaces", &seen)
}

pub(super) fn previous(test: &TestContext<'_>) -> TestResult {
    for (number, &version) in rich::family(test, test.version).iter().enumerate() {
        let target = rich::target(test, &format!("pod{number}"))?;
        let model = rich::previous_model(&target);
        let result = layout::render(&model, version);
        let answer = test.call_for("ADD", &target).previous(&result).run()?;
        handed_on(test, &answer, &model, version)?;
        test.del(&target, Some(&answer.result()?)).run()?;
    }
    Ok(())
}

pub(super) fn same_version(test: &TestContext<'_>) -> TestResult {
    rich::is_handed_something(test)?;
    let (target, answer, _) = rich::add(test)?;
    let model = rich::model_for(test, &target);
    if test.plugin.role == Role::Chained {
        return handed_on(test, &answer, &model, test.version);
    }
    same_parts(test, &answer, &model, test.version)
}

/// The JSON pointers, in the layout of a version, of the first IPv4 address, its gateway and the first IPv6
/// address.
fn pointers(version: Version) -> [&'static str; 3] {
    match version < Version::V0_3_0 {
        true => ["/ip4/ip", "/ip4/gateway", "/ip6/ip"],
        false => ["/ips/0/address", "/ips/0/gateway", "/ips/1/address"],
    }
}

/// Calls ADD with the usual model, in which the values at these pointers are spelled differently. Expects the
/// canonical addresses in the result.
fn respelled(test: &TestContext<'_>, spellings: &[(&str, &str)]) -> Result<(Answer, Value), Stop> {
    rich::is_handed_something(test)?;
    let target = rich::target(test, "pod1")?;
    let mut model = rich::model_for(test, &target);
    model["ips"][0]["address"] = json!("10.77.0.9/24");
    let mut result = layout::render(&model, test.version);
    for (pointer, spelling) in spellings {
        if let Some(value) = result.pointer_mut(pointer) {
            *value = json!(spelling);
        }
    }
    result["color"] = json!("blue");
    let answer = rich::handing(test, &target, &result)?.run()?;
    let seen = answer.result()?;
    let (wanted, addresses) = (layout::addresses(&model), layout::addresses(&seen));
    answer.ensure(addresses == wanted, format!("addresses {wanted:?}"), format!("{addresses:?}"))?;
    Ok((answer, seen))
}

/// An empty gateway means no gateway, which only a chained plugin can do without.
pub(super) fn canonical(test: &TestContext<'_>) -> TestResult {
    let [_, gateway, v6] = pointers(test.version);
    let v6 = (v6, "FD00:0077:0:0:0:0:0:9/64");
    let spellings = [v6, (gateway, "")];
    let spellings = if test.plugin.role == Role::Chained { &spellings[..] } else { &[v6] };
    let (answer, seen) = respelled(test, spellings)?;
    answer.ensure(seen.get("color").is_none(), "no unknown key", &seen)?;
    answer.ensure(seen.pointer(gateway) != Some(&json!("")), "no empty gateway", &seen)
}

pub(super) fn mapped(test: &TestContext<'_>) -> TestResult {
    let [v4, ..] = pointers(test.version);
    respelled(test, &[(v4, "::ffff:10.77.0.9/120")])?;
    Ok(())
}

pub(super) fn without_version(test: &TestContext<'_>) -> TestResult {
    rich::is_handed_something(test)?;
    let target = rich::target(test, "pod1")?;
    let model = rich::model_for(test, &target);
    let mut result = layout::render(&model, test.version);
    if let Some(members) = result.as_object_mut() {
        members.remove("cniVersion");
    }
    let answer = rich::handing(test, &target, &result)?;
    same_parts(test, &answer.run()?, &model, test.version)
}

pub(super) fn other_layout(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let Some(previous) = &target.previous else { return skip("the plugin gets no prevResult") };
    for version in LAYOUTS {
        if rich::has_other_layout(version, test.version) {
            let call = test.call_for("ADD", &target).previous(&layout::render(previous, version));
            call.run()?.refused()?;
        }
    }
    Ok(())
}

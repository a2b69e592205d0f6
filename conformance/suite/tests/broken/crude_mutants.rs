//! Crude mutants: plugins that do almost nothing right. A test case that passes for all of them and for every
//! mutant of [`mutants`] cannot fail.

use std::collections::BTreeSet;

use cni_conformance::catalog::{Entry, entries};
use cni_conformance::plugin_under_test::plugins_under_test;
use cni_lab::bin_dir;
use cni_runner::Version;
use serde_json::json;

use super::mutants::mutants;
use super::plugin::{Answer, Call, folder};
use super::{plan, shown};

/// Each test case applies to at least one of these plugins, or to the list.
const PLUGINS: [&str; 8] =
    ["loopback", "bridge", "host-local", "portmap", "bandwidth", "firewall", "tuning", "list"];

/// How a crude mutant answers a call.
type CrudeMutant = fn(Call) -> Answer;

/// The crude mutants by name. VERSION works in most: a plugin that declares no versions is tested with all.
pub(super) const CRUDE_MUTANTS: &[(&str, CrudeMutant)] = &[
    ("says-nothing-and-does-nothing", |call| version_or(call, |_| Answer::silence())),
    ("refuses-everything", |call| {
        version_or(call, |_| Answer::failed(r#"{"cniVersion":"1.0.0","code":999,"msg":"no"}"#))
    }),
    ("pretends-to-have-done-it", |call| version_or(call, pretend)),
    ("never-cleans-up", |call| match call.verb() {
        "DEL" | "GC" => Answer::silence(),
        _ => call.original(),
    }),
    ("does-not-tell-its-versions", |call| match call.verb() {
        "VERSION" => Answer::failed(""),
        _ => call.original(),
    }),
    ("dies-without-a-word", |call| version_or(call, |_| Answer { status: 139, ..Answer::silence() })),
];

fn version_or(call: Call, answer: CrudeMutant) -> Answer {
    if call.verb() == "VERSION" { call.original() } else { answer(call) }
}

/// Prints `prevResult`, or an invented address.
fn pretend(call: Call) -> Answer {
    if call.verb() != "ADD" {
        return Answer::silence();
    }
    let config = call.json();
    let version = config["cniVersion"].as_str().unwrap_or("0.1.0").to_owned();
    let previous = &config["prevResult"];
    if !previous.is_null() {
        return Answer::printed(previous.to_string());
    }
    let result = if version.as_str() < "0.3.0" {
        json!({"cniVersion": version, "ip4": {"ip": "10.77.0.2/24"}})
    } else {
        json!({"cniVersion": version, "ips": [{"address": "10.77.0.2/24", "version": "4"}]})
    };
    Answer::printed(result.to_string())
}

/// Runs the test cases that no mutant covers on every crude mutant.
pub(super) fn every_test_case_can_fail() -> anyhow::Result<()> {
    let mut never_failed: BTreeSet<String> =
        entries().flat_map(Entry::test_cases).map(|test_case| test_case.id()).collect();
    never_failed.retain(|id| !mutants().any(|mutant| mutant.test_case == id));
    let mut broken_runs = BTreeSet::new();
    for (mutant, _) in CRUDE_MUTANTS {
        // An empty filter list would mean all test cases.
        if never_failed.is_empty() {
            break;
        }
        let folder = folder(&bin_dir()?, &PLUGINS, mutant)?;
        let mut plan = plan(
            plugins_under_test(folder.path(), &PLUGINS.map(str::to_owned), None, true)?,
            never_failed.iter().cloned().collect(),
        );
        // One version of each result layout is enough for a test case to fail.
        plan.versions = vec![Version::V0_1_0, Version::V0_4_0, Version::V1_0_0, Version::V1_1_0];
        let ended = plan.run(|_, _| {});
        let broken = ended.iter().filter(|end| end.verdict.word() == "broken");
        broken_runs.extend(broken.map(|end| format!("{mutant}: {}", shown(end))));
        for end in ended.iter().filter(|end| end.verdict.mismatch().is_some()) {
            never_failed.remove(&end.run.test_case.id());
        }
    }
    anyhow::ensure!(broken_runs.is_empty(), "mutants that broke the suite: {broken_runs:#?}");
    anyhow::ensure!(never_failed.is_empty(), "test cases that pass for every mutant: {never_failed:#?}");
    Ok(())
}

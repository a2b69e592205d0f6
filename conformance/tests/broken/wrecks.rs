//! Plugins that do next to nothing right. A trial that none of them fails, and no fault of [`faults`] either, is one that
//! cannot fail.

use std::collections::BTreeSet;

use conformance::fixture::{bin_dir, go_bin_dir};
use conformance::runner::Version;
use conformance::suite::catalog::{Entry, entries};
use conformance::suite::subject::subjects;
use serde_json::json;

use super::faults::faults;
use super::plugin::{Answer, Call, folder};
use super::{plan, shown};

/// How a wreck answers a call.
type Wreck = fn(Call) -> Answer;

/// By name. VERSION works in most: a plugin that does not tell its versions is tried with all.
pub(super) const WRECKS: &[(&str, Wreck)] = &[
    ("says-nothing-and-does-nothing", |call| version_or(call, |_| Answer::silence())),
    ("refuses-everything", |call| {
        version_or(call, |_| Answer::failed(r#"{"cniVersion":"1.0.0","code":999,"msg":"no"}"#))
    }),
    ("pretends-to-have-done-it", |call| version_or(call, pretend)),
    ("never-cleans-up", |call| match call.verb() {
        "DEL" | "GC" => Answer::silence(),
        _ => call.sound(),
    }),
    ("does-not-tell-its-versions", |call| match call.verb() {
        "VERSION" => Answer::failed(""),
        _ => call.sound(),
    }),
    ("dies-without-a-word", |call| version_or(call, |_| Answer { status: 139, ..Answer::silence() })),
];

fn version_or(call: Call, answer: Wreck) -> Answer {
    if call.verb() == "VERSION" { call.sound() } else { answer(call) }
}

/// Prints what was there before, or an invented address.
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

/// Runs every trial on every wreck.
pub(super) fn every_trial_bites() -> anyhow::Result<()> {
    let mut toothless: BTreeSet<String> = entries().flat_map(Entry::trials).map(|trial| trial.id()).collect();
    toothless.retain(|id| !faults().any(|fault| fault.trial == id));
    let mut troubles = BTreeSet::new();
    let ours = subjects(&bin_dir()?, &[], None, true)?.into_iter().map(|subject| subject.name).collect();
    // Some trials are for plugins that only the reference has.
    let theirs = ["firewall", "tuning"].map(str::to_owned).to_vec();
    for (sound, names) in [(bin_dir()?, ours), (go_bin_dir()?, theirs)] {
        for (wreck, _) in WRECKS {
            // No filter at all would mean every trial.
            if toothless.is_empty() {
                break;
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let folder = folder(&sound, &names, wreck)?;
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            let mut plan =
                plan(subjects(folder.path(), &names, None, true)?, toothless.iter().cloned().collect());
            // One version of each shape: whether a trial bites does not depend on more.
            plan.versions = vec![Version::V0_1_0, Version::V0_4_0, Version::V1_0_0, Version::V1_1_0];
            let ended = plan.run(|_, _| {});
            let broken = ended.iter().filter(|end| end.verdict.word() == "broken");
            troubles.extend(broken.map(|end| format!("{wreck}: {}", shown(end))));
            for end in ended.iter().filter(|end| end.verdict.fault().is_some()) {
                toothless.remove(&end.case.trial.id());
            }
        }
    }
    anyhow::ensure!(troubles.is_empty(), "wrecks that broke the suite down: {troubles:#?}");
    anyhow::ensure!(toothless.is_empty(), "trials that no wreck fails: {toothless:#?}");
    Ok(())
}

//! The views as JSON. README.md documents the schema.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::alive::State;
use crate::check::{Checked, Outcome};
use crate::doctor::{self, Finding, Subject};
use crate::model::Owner;
use crate::node::{Attached, Leak};
use crate::view::{Shown, View};

/// The version of the schema. It grows if a member disappears or changes its meaning.
const SCHEMA: u32 = 1;

/// The document of a view.
pub fn document(shown: &Shown<'_>, view: &View) -> Value {
    let objects =
        |indexes: Vec<usize>| indexes.into_iter().map(|index| object(shown, index)).collect::<Vec<_>>();
    let mut document = json!({"schema": SCHEMA});
    let (key, value) = match view {
        View::Pods { all } => (
            "attachments",
            shown.node.attachments_to_networks(*all).map(|attached| attachment(shown, &attached)).collect(),
        ),
        View::Leaks => ("leaks", shown.leaks.iter().map(|leak| self::leak(shown, leak)).collect()),
        View::Why(what) => {
            let (attachments, nameless) = shown.named(what);
            document["objects"] = objects(nameless).into();
            ("attachments", attachments.iter().map(|attached| attachment(shown, attached)).collect())
        }
        _ => ("objects", objects(shown.node.objects_of(view.kinds()))),
    };
    document[key] = Value::Array(value);
    document["failures"] = shown.node.failures.clone().into();
    document
}

/// The document on one line.
pub fn text(document: &Value) -> String {
    // Cannot fail: all keys are texts.
    serde_json::to_string(document).unwrap_or_default()
}

/// A leak: an object with the proof.
pub fn leak(shown: &Shown<'_>, leak: &Leak) -> Value {
    let mut value = object(shown, leak.object);
    value["proof"] = leak.proof.clone().into();
    value
}

/// The outcomes of CHECK.
pub fn checks(checked: &Checked) -> Value {
    let check = |(whose, outcome): &(Owner, Outcome)| {
        let mut value = owner(whose);
        let (word, why) = match outcome {
            Outcome::Sound => ("sound", None),
            Outcome::Skipped(why) => ("skipped", Some(why)),
            Outcome::Failed(why) => ("failed", Some(why)),
        };
        value["outcome"] = word.into();
        value["reason"] = why.cloned().into();
        value
    };
    let checks: Vec<Value> = checked.outcomes.iter().map(check).collect();
    json!({"schema": SCHEMA, "checks": checks, "failures": checked.failures})
}

/// What the doctor has looked at and found.
pub fn examined(subjects: &[Subject]) -> Value {
    let finding = |finding: &Finding| {
        json!({"severity": finding.severity.as_str(), "subject": finding.subject, "problem": finding.problem,
            "remedy": finding.remedy})
    };
    let subject = |subject: &Subject| json!({"subject": subject.name, "outcome": subject.outcome(), "seen": subject.seen});
    let findings: Vec<Value> = doctor::findings(subjects).into_iter().map(finding).collect();
    let looked_at: Vec<Value> = subjects.iter().map(subject).collect();
    json!({"schema": SCHEMA, "findings": findings, "lookedAt": looked_at, "failures": []})
}

fn attachment(shown: &Shown<'_>, attached: &Attached<'_>) -> Value {
    let mut value = owner(&attached.owner);
    value["state"] = shown.state_of(attached).0.into();
    value["addresses"] =
        shown.addresses(attached).split(',').filter(|address| !address.is_empty()).collect::<Vec<_>>().into();
    if let Some(entry) = attached.entry {
        value["pod"] = entry.pod().into();
        value["netns"] = entry.netns.clone().into();
        value["cache"] = entry.file.display().to_string().into();
        value["since"] = seconds(entry.since).into();
        value["processes"] = shown.node.processes_of(attached).to_vec().into();
    }
    value["objects"] = attached.objects.iter().map(|index| object(shown, *index)).collect::<Vec<_>>().into();
    value
}

fn object(shown: &Shown<'_>, index: usize) -> Value {
    let object = &shown.node.objects[index];
    let mut value = owner(&object.owner);
    let (state, why) = match &shown.states[index] {
        State::Alive(why) => ("alive", why),
        State::Dead(why) => ("dead", why),
        State::Unknown(why) => ("unknown", why),
    };
    let addresses: Vec<String> = object.addresses.iter().map(ToString::to_string).collect();
    for (key, text) in [
        ("kind", object.kind.as_str()),
        ("name", &object.name),
        ("place", &object.place),
        ("maker", object.maker.as_str()),
        ("state", state),
        ("reason", why),
    ] {
        value[key] = text.into();
    }
    value["addresses"] = addresses.into();
    value["since"] = seconds(object.since).into();
    value["facts"] = json!({});
    for (key, fact) in &object.facts {
        value["facts"][key] = fact.as_str().into();
    }
    value
}

fn owner(owner: &Owner) -> Value {
    json!({"container": owner.container, "network": owner.network, "ifname": owner.ifname})
}

fn seconds(time: Option<SystemTime>) -> Option<u64> {
    Some(time?.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

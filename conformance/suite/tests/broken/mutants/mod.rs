//! Mutants: plugins with one deliberate fault, each with the test case that must find it.

mod answers;
mod calls;
mod interaction;
mod verbs;

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::plugin::{Answer, Call};

/// A plugin with one deliberate fault.
pub(super) struct Mutant {
    /// A description of the fault.
    pub name: &'static str,
    /// The plugin that has the fault.
    pub plugin: &'static str,
    /// The ID of the test case that must fail.
    pub test_case: &'static str,
    /// How the plugin answers.
    pub answer: fn(Call) -> Answer,
    /// What the suite judges: the plugin, or `chain`.
    pub judged: &'static str,
}

const fn mutant(
    plugin: &'static str,
    name: &'static str,
    test_case: &'static str,
    answer: fn(Call) -> Answer,
) -> Mutant {
    Mutant { name, plugin, test_case, answer, judged: plugin }
}

/// A mutant that is judged as a part of the whole list.
const fn in_chain(
    plugin: &'static str,
    name: &'static str,
    test_case: &'static str,
    answer: fn(Call) -> Answer,
) -> Mutant {
    Mutant { name, plugin, test_case, answer, judged: "list" }
}

/// All mutants.
pub(super) fn mutants() -> impl Iterator<Item = &'static Mutant> {
    [calls::MUTANTS, answers::MUTANTS, verbs::MUTANTS, interaction::MUTANTS].into_iter().flatten()
}

fn checks_nothing(call: Call) -> Answer {
    if call.verb() == "CHECK" { Answer::silence() } else { call.original() }
}

/// Removes a key from an object.
fn forget(object: &mut Value, key: &str) {
    if let Some(keys) = object.as_object_mut() {
        keys.remove(key);
    }
}

/// An error object.
fn refused(code: u64, msg: &str) -> Answer {
    Answer::failed(
        json!({"cniVersion": "1.0.0", "code": code, "msg": msg, "details": "broken on purpose"}).to_string(),
    )
}

/// The original plugin's answer with its error object changed.
fn spoiled(call: &Call, change: fn(&mut Value)) -> Answer {
    let mut answer = call.original();
    let mut object = answer.json();
    if answer.status != 0 && object.is_object() {
        change(&mut object);
        answer.stdout = object.to_string().into_bytes();
    }
    answer
}

/// The original plugin's answer with its ADD result changed.
fn changed(call: &Call, change: fn(&mut Value)) -> Answer {
    let mut answer = call.original();
    let mut object = answer.json();
    if call.verb() == "ADD" && answer.status == 0 && object.is_object() {
        change(&mut object);
        answer.stdout = object.to_string().into_bytes();
    }
    answer
}

/// The original plugin's answer, after a shell command if this is the verb.
fn beforehand(call: &Call, verb: &str, script: &str) -> Answer {
    if call.verb() == verb {
        sh(call, script);
    }
    call.original()
}

/// The original plugin's answer, followed by a shell command if this is the verb.
fn afterwards(call: &Call, verb: &str, script: &str) -> Answer {
    let answer = call.original();
    if call.verb() == verb {
        sh(call, script);
    }
    answer
}

/// Runs a shell command on the node with the call's variables; `true` if it succeeds.
fn sh(call: &Call, script: &str) -> bool {
    let status = Command::new("/bin/sh")
        .args(["-c", script])
        .envs(call.env.iter().map(|(key, value)| (key, value)))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

//! Plugins with one thing wrong, and the trial that has to say so.

mod answers;
mod calls;
mod company;
mod verbs;

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::plugin::{Answer, Call};

/// One thing wrong.
pub(super) struct Mutant {
    /// What is wrong.
    pub name: &'static str,
    /// With which plugin.
    pub plugin: &'static str,
    /// The trial that notices.
    pub test_case: &'static str,
    /// How the plugin answers.
    pub answer: fn(Call) -> Answer,
    /// What is judged, if it is not the plugin by itself.
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

/// The same plugin, judged as a part of the whole chain.
const fn in_chain(
    plugin: &'static str,
    name: &'static str,
    test_case: &'static str,
    answer: fn(Call) -> Answer,
) -> Mutant {
    Mutant { name, plugin, test_case, answer, judged: "chain" }
}

/// All of them, in the order of the requirements.
pub(super) fn mutants() -> impl Iterator<Item = &'static Mutant> {
    [calls::MUTANTS, answers::MUTANTS, verbs::MUTANTS, company::MUTANTS].into_iter().flatten()
}

fn checks_nothing(call: Call) -> Answer {
    if call.verb() == "CHECK" { Answer::silence() } else { call.sound() }
}

/// Takes a key out of an object.
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

/// The sound plugin's answer, with its error object changed.
fn spoiled(call: &Call, change: fn(&mut Value)) -> Answer {
    let mut answer = call.sound();
    let mut object = answer.json();
    if answer.status != 0 && object.is_object() {
        change(&mut object);
        answer.stdout = object.to_string().into_bytes();
    }
    answer
}

/// The sound plugin's answer, with its result of an ADD changed.
fn changed(call: &Call, change: fn(&mut Value)) -> Answer {
    let mut answer = call.sound();
    let mut object = answer.json();
    if call.verb() == "ADD" && answer.status == 0 && object.is_object() {
        change(&mut object);
        answer.stdout = object.to_string().into_bytes();
    }
    answer
}

/// The sound plugin, with a shell command before one of its verbs.
fn beforehand(call: &Call, verb: &str, script: &str) -> Answer {
    if call.verb() == verb {
        sh(call, script);
    }
    call.sound()
}

/// The sound plugin, with a shell command after one of its verbs.
fn afterwards(call: &Call, verb: &str, script: &str) -> Answer {
    let answer = call.sound();
    if call.verb() == verb {
        sh(call, script);
    }
    answer
}

/// Runs a shell command on the node with the call's variables; whether it succeeded.
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

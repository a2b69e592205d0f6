//! Plugins with one thing wrong, and the trial that has to say so.

use super::plugin::{Answer, Call};

/// One thing wrong.
pub(super) struct Fault {
    /// What is wrong.
    pub name: &'static str,
    /// With which plugin.
    pub plugin: &'static str,
    /// What is judged, if it is not the plugin itself.
    pub through: Option<&'static str>,
    /// The trial that notices.
    pub trial: &'static str,
    /// How the plugin answers.
    pub answer: fn(Call) -> Answer,
}

impl Fault {
    /// The name of the subject to judge.
    pub(super) fn judged(&self) -> &'static str {
        self.through.unwrap_or(self.plugin)
    }
}

const fn fault(
    plugin: &'static str,
    name: &'static str,
    trial: &'static str,
    answer: fn(Call) -> Answer,
) -> Fault {
    Fault { name, plugin, through: None, trial, answer }
}

/// In the order of the trials.
pub(super) const FAULTS: &[Fault] =
    &[fault("loopback", "is-never-ready", "STA-01/a-plugin-in-good-order-is-ready", |call| {
        match call.verb() {
            "STATUS" => Answer::failed(r#"{"cniVersion":"1.1.0","code":50,"msg":"not yet"}"#),
            _ => call.sound(),
        }
    })];

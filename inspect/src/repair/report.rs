//! What `ferrule repair` prints. Pure.

use itertools::Itertools as _;
use serde::Serialize;
use serde_json::json;

use crate::model::{Owner, SCHEMA};

/// The outcome for a plugin of an attachment, or for the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It could not be repaired.
    Failed,
    /// CHECK agrees again.
    Repaired,
    /// It would be repaired.
    Possible,
    /// It was left alone.
    Skipped,
    /// All plugins agree.
    Sound,
}

/// An outcome with its reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The outcome.
    pub outcome: Outcome,
    /// The attachment.
    #[serde(flatten)]
    pub owner: Owner,
    /// The plugin; `None` if the outcome is that of the attachment.
    pub plugin: Option<String>,
    /// Why it was skipped, or what CHECK has refused.
    pub reason: Option<String>,
}

impl Finding {
    /// The outcome as a line of text, except of a sound attachment.
    pub(crate) fn line(&self) -> Option<String> {
        let Finding { outcome, owner, plugin, reason } = self;
        let verb = match outcome {
            Outcome::Failed => "cannot repair",
            Outcome::Repaired => "repaired",
            Outcome::Possible => "would repair",
            Outcome::Skipped => "skipped",
            Outcome::Sound => return None,
        };
        let plugin = plugin.as_ref().map(|plugin| format!("{plugin} of ")).unwrap_or_default();
        Some(format!("{verb} {plugin}{owner}: {}\n", reason.as_deref().unwrap_or_default()))
    }
}

/// What was found and done.
#[derive(Debug, Default)]
pub struct Repaired {
    /// In the order of outcomes and attachments.
    pub findings: Vec<Finding>,
    /// What could not be read.
    pub failures: Vec<String>,
    /// The number of broken attachments that another run may repair: the runtime was starting or ending the container.
    pub postponed: usize,
}

impl Repaired {
    /// Whether all cached results could be read, and nothing is broken that could not be repaired.
    pub fn is_done(&self) -> bool {
        self.failures.is_empty() && self.count(Outcome::Failed) == 0
    }

    /// The number of attachments with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        let findings = self.findings.iter().filter(|finding| finding.outcome == outcome);
        findings.map(|finding| &finding.owner).dedup().count()
    }

    /// As text, or as JSON.
    pub fn report(&self, as_json: bool) -> String {
        let Repaired { findings, failures, .. } = self;
        if as_json {
            return json!({"schema": SCHEMA, "repairs": findings, "failures": failures}).to_string();
        }
        let lines: String = findings.iter().filter_map(Finding::line).collect();
        let unread: String = failures.iter().map(|why| format!("{why}\n")).collect();
        let [sound, failed, repaired, skipped] =
            [Outcome::Sound, Outcome::Failed, Outcome::Repaired, Outcome::Skipped].map(|o| self.count(o));
        let done = match self.count(Outcome::Possible) {
            0 => format!("{repaired} repaired"),
            possible => format!("{possible} to repair with --yes"),
        };
        format!("{lines}{unread}{done}, {failed} failed, {skipped} skipped, {sound} sound\n")
    }
}

//! What `ferrule repair` prints. Pure.

use itertools::Itertools as _;
use serde::Serialize;
use serde_json::json;

use crate::line::Line;
use crate::model::{Owner, SCHEMA};

/// Why another project's plugin is skipped.
pub(super) const FOREIGN: &str = "not Ferrule's";

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
    /// The outcome as a line of text, except of a sound attachment and of another project's plugin.
    pub(crate) fn line(&self) -> Option<Line> {
        let Finding { outcome, owner, plugin, reason } = self;
        let verb = match outcome {
            Outcome::Failed => "cannot repair",
            Outcome::Repaired => "repaired",
            Outcome::Possible => "would repair",
            Outcome::Skipped if !self.is_foreign() => "skipped",
            Outcome::Skipped | Outcome::Sound => return None,
        };
        let plugin = plugin.as_ref().map(|plugin| format!("{plugin} of ")).unwrap_or_default();
        Some(Line::new(format_args!("{verb} {plugin}{owner}: {}", reason.as_deref().unwrap_or_default())))
    }

    /// Whether it is about another project's plugin.
    fn is_foreign(&self) -> bool {
        self.outcome == Outcome::Skipped && self.plugin.is_some()
    }
}

/// The outcomes of a run.
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

    /// The number of attachments with this outcome. Skipped plugins of other projects do not count.
    pub fn count(&self, outcome: Outcome) -> usize {
        let findings =
            self.findings.iter().filter(|finding| finding.outcome == outcome && !finding.is_foreign());
        findings.map(|finding| &finding.owner).dedup().count()
    }

    /// As text, or as JSON.
    pub fn report(&self, as_json: bool) -> String {
        let Repaired { findings, failures, .. } = self;
        if as_json {
            return json!({"schema": SCHEMA, "repairs": findings, "failures": failures}).to_string();
        }
        let mut lines: Vec<Line> = findings.iter().filter_map(Finding::line).collect();
        let foreign = findings.iter().filter(|finding| finding.is_foreign());
        for (plugin, count) in
            foreign.filter_map(|finding| finding.plugin.as_ref()).counts().into_iter().sorted()
        {
            lines.push(Line::new(format_args!("skipped {plugin} of {count} attachments: {FOREIGN}")));
        }
        lines.extend(failures.iter().map(Line::new));
        let [sound, failed, repaired, skipped] =
            [Outcome::Sound, Outcome::Failed, Outcome::Repaired, Outcome::Skipped].map(|o| self.count(o));
        let done = match self.count(Outcome::Possible) {
            0 => format!("{repaired} repaired"),
            possible => format!("{possible} to repair with --yes"),
        };
        lines.push(Line::new(format_args!("{done}, {failed} failed, {skipped} skipped, {sound} sound")));
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn finding(outcome: Outcome, container: &str, plugin: &str) -> Finding {
        let plugin = Some(plugin.to_owned()).filter(|plugin| !plugin.is_empty());
        Finding { outcome, owner: Owner::container(container), plugin, reason: Some("why".to_owned()) }
    }

    #[test]
    fn attachments_are_counted_and_foreign_plugins_summed_up() {
        let mut findings = vec![
            finding(Outcome::Failed, "c1", "bridge"),
            finding(Outcome::Repaired, "c1", "portmap"),
            finding(Outcome::Repaired, "c2", "firewall"),
            finding(Outcome::Repaired, "c2", "portmap"),
            finding(Outcome::Skipped, "c3", ""),
            finding(Outcome::Skipped, "c4", "calico"),
            finding(Outcome::Skipped, "c5", "calico"),
            finding(Outcome::Sound, "c4", ""),
        ];
        let failures = vec!["cannot read x".to_owned()];
        let mut repaired = Repaired { findings: findings.clone(), failures: failures.clone(), postponed: 0 };
        let expected = "\
cannot repair bridge of container c1: why
repaired portmap of container c1: why
repaired firewall of container c2: why
repaired portmap of container c2: why
skipped container c3: why
skipped calico of 2 attachments: not Ferrule's
cannot read x
2 repaired, 1 failed, 1 skipped, 1 sound
";
        assert_eq!(repaired.report(false), expected);
        let json: Value = repaired.report(true).parse().unwrap();
        assert_eq!(json["repairs"][1]["plugin"], "portmap");
        assert!(!repaired.is_done());
        findings.remove(0);
        repaired = Repaired { findings: findings.clone(), failures, postponed: 0 };
        assert!(!repaired.is_done());
        findings.push(finding(Outcome::Possible, "c6", "portmap"));
        repaired = Repaired { findings, ..Repaired::default() };
        assert!(repaired.is_done() && repaired.report(false).contains("1 to repair with --yes, 0 failed"));
    }
}

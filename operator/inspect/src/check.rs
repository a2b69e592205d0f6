//! `ferrule check`: CHECK for every live attachment of libcni's cache, as libcni calls it.
//!
//! Each call is a process of the plugin folder. A chain may contain other projects' plugins, an enforced panic or a plugin
//! that hangs stays one attachment's matter, and the call tests the program that the runtime will start.
//!
//! # References
//! CheckNetworkList in libcni/api.go.

use std::iter;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::{available_parallelism, scope};
use std::time::Duration;

use cni_common::spec::SpecVersion;
use serde::Serialize;
use serde_json::json;

use crate::cache::{Cache, Entry};
use crate::doctor::ports;
use crate::line::Line;
use crate::model::{Owner, SCHEMA, State, name};
use crate::node::NOT_WHOLE;
use crate::process;
use crate::scene::lacks;
use crate::sight::{self, Sight};

/// The outcome for one attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// A plugin has failed.
    Failed,
    /// CHECK was not made.
    Skipped,
    /// All plugins agree.
    Sound,
}

/// What the calls for one attachment have found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Check {
    /// The outcome.
    pub outcome: Outcome,
    /// The attachment.
    #[serde(flatten)]
    pub owner: Owner,
    /// Why it was skipped, or the plugin that failed and its error.
    pub reason: Option<String>,
}

/// What the calls have found.
#[derive(Debug, Default)]
pub struct Checked {
    /// The failed attachments, then the skipped ones, then the sound ones.
    pub checks: Vec<Check>,
    /// What CHECK does not see, and what is no failure: host ports that take the packets of the node's programs.
    pub warnings: Vec<String>,
    /// What could not be read.
    pub failures: Vec<String>,
}

impl Checked {
    /// Whether all cached results could be read and no plugin failed.
    pub fn is_sound(&self) -> bool {
        self.failures.is_empty() && self.count(Outcome::Failed) == 0
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// As text, or as JSON.
    pub fn report(&self, as_json: bool) -> String {
        let Checked { checks, warnings, failures } = self;
        if as_json {
            return json!({"schema": SCHEMA, "checks": checks, "warnings": warnings, "failures": failures})
                .to_string();
        }
        let line = |Check { outcome, owner, reason }: &Check| {
            Some(Line::new(format_args!("{}: {owner}: {}", name(outcome), reason.as_ref()?)))
        };
        let warnings = warnings.iter().map(|warning| Line::new(format_args!("warning: {warning}")));
        let lines = checks.iter().filter_map(line).chain(warnings).chain(failures.iter().map(Line::new));
        let lines: String = lines.map(|line| format!("{line}\n")).collect();
        let [sound, failed, skipped] =
            [Outcome::Sound, Outcome::Failed, Outcome::Skipped].map(|outcome| self.count(outcome));
        format!("{lines}{sound} sound, {failed} failed, {skipped} skipped\n")
    }
}

/// Makes the calls, one for each CPU at once; without `all` not for attachments of `lo`. `init` is the node's first process, if
/// it is not 1.
pub fn run(results: &Path, init: Option<u32>, path: &[PathBuf], limit: Duration, all: bool) -> Checked {
    let sight = Sight::of_check(init, results);
    let mut cache = Cache::read(results, &sight);
    cache.entries.retain(|entry| all || !entry.is_loopback());
    let lacks = lacks(&sight::read("/proc/thread-self/status").unwrap_or_default());
    let check = |entry: &Entry| {
        let (outcome, reason) = match reason_to_skip(entry, &sight, lacks) {
            Some(why) => (Outcome::Skipped, Some(why)),
            None => match call(entry, path, limit) {
                Ok(()) => (Outcome::Sound, None),
                // The time for all calls has ended, so that the plugin is not to blame.
                Err(why) if process::within(limit).is_err() => (Outcome::Skipped, Some(why)),
                Err(why) => (Outcome::Failed, Some(why)),
            },
        };
        Check { outcome, owner: entry.owner.clone(), reason }
    };
    let waiting = Mutex::new(cache.entries.iter());
    let work = || iter::from_fn(|| waiting.lock().ok()?.next()).map(check).collect::<Vec<_>>();
    let mut checks: Vec<Check> = scope(|scope| {
        let at_once = available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    checks.sort();
    let mut failures: Vec<String> = sight.partial.iter().map(|why| format!("{NOT_WHOLE}: {why}")).collect();
    failures.extend(lacks.map(|right| format!("plugins need {right}, which this process lacks")));
    if !cache.is_readable {
        failures.push(format!("cannot read the cached results in {}", results.display()));
    }
    failures.append(&mut cache.failures);
    let warnings = if sight.is_elsewhere || lacks.is_some() { Vec::new() } else { ports::warnings() };
    Checked { checks, warnings, failures }
}

/// Calls all plugins of an attachment.
fn call(entry: &Entry, path: &[PathBuf], limit: Duration) -> Result<(), String> {
    let variables = [
        ("CNI_COMMAND", "CHECK"),
        ("CNI_CONTAINERID", entry.owner.container.as_deref().unwrap_or_default()),
        ("CNI_IFNAME", entry.owner.ifname.as_deref().unwrap_or_default()),
        ("CNI_NETNS", &entry.netns),
        ("CNI_ARGS", &entry.args()),
    ];
    for plugin in entry.plugins() {
        let name = plugin["type"].as_str().unwrap_or_default();
        let checked = process::call(path, name, &variables, &entry.request(plugin), limit);
        checked.map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// Why an attachment is not to be checked.
pub(crate) fn reason_to_skip(entry: &Entry, sight: &Sight, lacks: Option<&str>) -> Option<String> {
    // The host's ends, bridges and rules are not here.
    if sight.is_elsewhere {
        return Some("this is not the node's network namespace".to_owned());
    }
    if let Some(right) = lacks {
        return Some(format!("no {right}"));
    }
    if let State::Dead(why) | State::Unknown(why) = entry.state() {
        return Some(why);
    }
    let version = entry.config["cniVersion"].as_str().unwrap_or_default();
    if SpecVersion::parse(version).is_none_or(|version| version < SpecVersion::V0_4_0) {
        return Some(format!("CNI version {version:?} has no CHECK"));
    }
    let disabled = &entry.config["disableCheck"];
    (*disabled == true || *disabled == "true").then(|| "disableCheck".to_owned())
}

#[cfg(test)]
mod tests {
    use ferrule_kit::presence::Presence;
    use serde_json::Value;

    use super::*;

    fn entry(config: Value) -> Entry {
        let owner = Owner::container("c1").on("net").with_ifname("eth0");
        Entry { owner, config: config.into(), netns_state: Presence::Present((0, 1)), ..Entry::default() }
    }

    fn sight() -> Sight {
        Sight { own: 0, partial: None, is_within: false, is_elsewhere: false }
    }

    #[test]
    fn what_cannot_be_checked_is_skipped() {
        let why = |config: Value| reason_to_skip(&entry(config), &sight(), None);
        assert!(why(json!({"cniVersion": "0.3.1"})).is_some() && why(json!({})).is_some());
        assert_eq!(why(json!({"cniVersion": "1.0.0", "disableCheck": "true"})).unwrap(), "disableCheck");
        assert_eq!(why(json!({"cniVersion": "0.4.0", "disableCheck": false})), None);
        let elsewhere = Sight { is_elsewhere: true, ..sight() };
        assert!(reason_to_skip(&entry(json!({"cniVersion": "1.0.0"})), &elsewhere, None).is_some());
        assert_eq!(reason_to_skip(&entry(json!({})), &sight(), Some("x")).as_deref(), Some("no x"));
        let netns_state = Presence::Gone { is_missing: true };
        let gone = Entry { netns_state, netns: "/n".into(), ..entry(json!({"cniVersion": "1.0.0"})) };
        assert_eq!(reason_to_skip(&gone, &sight(), None).as_deref(), Some("namespace /n does not exist"));
    }
}

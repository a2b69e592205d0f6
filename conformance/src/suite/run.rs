//! Puts plugins through their trials, several at a time.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::catalog::{Entry, entries};
use super::deviations::Deviations;
use super::lab::Lab;
use super::outcome::{Fault, Stop, Trialled};
use super::requirement::Level;
use super::subject::Subject;
use super::trial::Trial;
use crate::runner::Version;

/// A trial that has taken longer waited for something.
const LATE: Duration = Duration::from_secs(2);

/// Which requirements are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// What the specification and its conventions say.
    Spec,
    /// What callers in wide use need beyond that.
    Interop,
    /// Both, and what the reference does.
    All,
}

impl Profile {
    fn has(self, level: Level) -> bool {
        let is_interop = matches!(level, Level::Interop | Level::Reference);
        match self {
            Profile::Spec => !is_interop,
            Profile::Interop => is_interop,
            Profile::All => true,
        }
    }
}

/// What is to be tried.
#[derive(Debug)]
pub struct Plan {
    /// The plugins.
    pub subjects: Vec<Subject>,
    /// The versions; every published one if empty.
    pub versions: Vec<Version>,
    /// The levels.
    pub profile: Profile,
    /// Parts of trials' names, of which one has to be met; everything if empty.
    pub filters: Vec<String>,
    /// How many trials are made at the same time.
    pub jobs: usize,
    /// Whether nodes can be made.
    pub is_root: bool,
    /// Failures that are known.
    pub known: Deviations,
}

/// How one trial of one plugin with one version ended.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// As demanded.
    Pass,
    /// Not as demanded.
    Fail(Fault),
    /// Not as demanded, where the demand is a SHOULD.
    Warn(Fault),
    /// Not as the reference does, or not as a plugin may.
    Note(Fault),
    /// Not as demanded, as is known, for this reason.
    Known(Fault, String),
    /// It could not be tried, for this reason.
    Skip(String),
    /// The suite or the machine failed.
    Broken(String),
}

impl Verdict {
    /// Whether the plugin did as demanded, or it is known why not, or it could not be tried.
    fn is_settled(&self) -> bool {
        matches!(self, Verdict::Pass | Verdict::Known(..) | Verdict::Skip(_))
    }

    /// Whether a run with this verdict has failed.
    pub fn is_failure(&self) -> bool {
        matches!(self, Verdict::Fail(_) | Verdict::Broken(_))
    }

    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail(_) => "fail",
            Verdict::Warn(_) => "warn",
            Verdict::Note(_) => "note",
            Verdict::Known(..) => "known",
            Verdict::Skip(_) => "skip",
            Verdict::Broken(_) => "broken",
        }
    }

    /// What was expected and seen, if the plugin did otherwise.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Verdict::Fail(fault) | Verdict::Warn(fault) | Verdict::Note(fault) | Verdict::Known(fault, _) => {
                Some(fault)
            }
            Verdict::Pass | Verdict::Skip(_) | Verdict::Broken(_) => None,
        }
    }
}

/// One trial of one plugin with one version.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The plugin.
    pub subject: &'a Subject,
    /// The requirement.
    pub entry: Entry,
    /// The trial.
    pub trial: &'static Trial,
    /// The version.
    pub version: Version,
}

/// A case, its end, and the time that it took.
#[derive(Debug, Clone)]
pub struct Ended<'a> {
    /// The case.
    pub case: Case<'a>,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took, the making of its node and a repetition included.
    pub time: Duration,
}

impl Plan {
    /// The cases, in the order of a report: by plugin, requirement, trial, version.
    pub fn cases(&self) -> Vec<Case<'_>> {
        let mut cases = Vec::new();
        for subject in &self.subjects {
            for entry in entries().filter(|entry| self.profile.has(entry.requirement.level)) {
                for trial in entry.trials().filter(|trial| trial.is_for(subject) && self.is_chosen(trial)) {
                    let versions = self.versions_of(subject, entry);
                    let versions = if trial.each_version { &versions[..] } else { last(&versions) };
                    cases.extend(versions.iter().map(|&version| Case { subject, entry, trial, version }));
                }
            }
        }
        cases
    }

    fn is_chosen(&self, trial: &Trial) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| trial.id().contains(filter.as_str()))
    }

    fn versions_of(&self, subject: &Subject, entry: Entry) -> Vec<Version> {
        let mut versions = Version::PUBLISHED.to_vec();
        versions.retain(|version| {
            subject.versions.contains(version)
                && entry.requirement.versions.contains(*version)
                && (self.versions.is_empty() || self.versions.contains(version))
        });
        versions
    }

    /// Makes all trials. `progress` hears of each that has ended, in any order, with the number of those before it.
    ///
    /// Those that failed late are then made again, one at a time, and what they come to then counts: many trials at the same time
    /// make namespaces and links for which the kernel keeps all others waiting. Of a plugin that fails alone as well, no more are
    /// made again: it is the plugin.
    pub fn run(&self, progress: impl Fn(usize, &Ended<'_>) + Sync) -> Vec<Ended<'_>> {
        let cases = self.cases();
        let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let slots: Vec<Mutex<Option<Ended<'_>>>> = cases.iter().map(|_| Mutex::new(None)).collect();
        thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, cases.len().max(1)) {
                scope.spawn(|| {
                    while let Some((&case, slot)) = {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        cases.get(index).zip(slots.get(index))
                    } {
                        let start = Instant::now();
                        let verdict = self.judge(case);
                        let end = Ended { case, verdict, time: start.elapsed() };
                        progress(ended.fetch_add(1, Ordering::Relaxed), &end);
                        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
                    }
                });
            }
        });
        let mut ended: Vec<Ended<'_>> = slots
            .into_iter()
            .filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        if self.jobs > 1 && cases.len() > 1 {
            self.repeat_late(&mut ended);
        }
        ended
    }

    fn repeat_late(&self, ended: &mut [Ended<'_>]) {
        let mut failed_alone = BTreeSet::new();
        for end in ended.iter_mut().filter(|end| end.time > LATE && !end.verdict.is_settled()) {
            let plugin = &end.case.subject.name;
            if failed_alone.contains(plugin) {
                continue;
            }
            let start = Instant::now();
            end.verdict = self.judge(end.case);
            end.time += start.elapsed();
            if !end.verdict.is_settled() {
                failed_alone.insert(plugin);
            }
        }
    }

    fn judge(&self, case: Case<'_>) -> Verdict {
        if !case.trial.anywhere && !self.is_root {
            return Verdict::Skip("it needs root, to make network namespaces".to_owned());
        }
        match catch_unwind(AssertUnwindSafe(|| self.attempt(case))) {
            Ok(Ok(())) => Verdict::Pass,
            Ok(Err(Stop::Skip(why))) => Verdict::Skip(why),
            Ok(Err(Stop::Broken(error))) => Verdict::Broken(format!("{error:#}")),
            Ok(Err(Stop::Fault(fault))) => self.weigh(case, *fault),
            Err(panic) => Verdict::Broken(
                panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_else(|| "the trial panicked".to_owned()),
            ),
        }
    }

    fn attempt(&self, case: Case<'_>) -> Trialled {
        let lab = Lab::new(case.subject, case.version, self.is_root)?;
        (case.trial.run)(&lab)
    }

    /// What a fault means, by the level of what is demanded.
    fn weigh(&self, case: Case<'_>, fault: Fault) -> Verdict {
        if let Some(reason) = self.known.reason(&case.subject.name, &case.trial.id(), case.version) {
            return Verdict::Known(fault, reason.to_owned());
        }
        match case.entry.requirement.level {
            Level::Must | Level::Interop => Verdict::Fail(fault),
            Level::Should | Level::Convention => Verdict::Warn(fault),
            Level::May | Level::Reference => Verdict::Note(fault),
        }
    }
}

fn last<T>(items: &[T]) -> &[T] {
    items.last().map_or(&[], std::slice::from_ref)
}

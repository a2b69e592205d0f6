//! Puts plugins through their trials, several at a time.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::catalog::{Entry, entries};
use super::deviations::Deviations;
use super::outcome::{Mismatch, Stop, TestResult};
use super::plugin_under_test::PluginUnderTest;
use super::requirement::Level;
use super::test_case::TestCase;
use super::test_context::TestContext;
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
    pub plugins: Vec<PluginUnderTest>,
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
    Fail(Mismatch),
    /// Not as demanded, where the demand is a SHOULD.
    Warn(Mismatch),
    /// Not as the reference does, or not as a plugin may.
    Note(Mismatch),
    /// Not as demanded, as is known, for this reason.
    Known(Mismatch, String),
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
    pub fn mismatch(&self) -> Option<&Mismatch> {
        match self {
            Verdict::Fail(mismatch)
            | Verdict::Warn(mismatch)
            | Verdict::Note(mismatch)
            | Verdict::Known(mismatch, _) => Some(mismatch),
            Verdict::Pass | Verdict::Skip(_) | Verdict::Broken(_) => None,
        }
    }
}

/// One trial of one plugin with one version.
#[derive(Debug, Clone, Copy)]
pub struct TestRun<'a> {
    /// The plugin.
    pub plugin: &'a PluginUnderTest,
    /// The requirement.
    pub entry: Entry,
    /// The trial.
    pub test_case: &'static TestCase,
    /// The version.
    pub version: Version,
}

/// A case, its end, and the time that it took.
#[derive(Debug, Clone)]
pub struct Ended<'a> {
    /// The case.
    pub run: TestRun<'a>,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took, the making of its node and a repetition included.
    pub time: Duration,
}

impl Plan {
    /// The cases, in the order of a report: by plugin, requirement, trial, version.
    pub fn test_runs(&self) -> Vec<TestRun<'_>> {
        let mut test_runs = Vec::new();
        for plugin in &self.plugins {
            for entry in entries().filter(|entry| self.profile.has(entry.requirement.level)) {
                for test_case in entry.test_cases().filter(|case| case.is_for(plugin) && self.is_chosen(case))
                {
                    let versions = self.versions_of(plugin, entry);
                    let versions = if test_case.each_version { &versions[..] } else { last(&versions) };
                    test_runs.extend(versions.iter().map(|&version| TestRun {
                        plugin,
                        entry,
                        test_case,
                        version,
                    }));
                }
            }
        }
        test_runs
    }

    fn is_chosen(&self, test_case: &TestCase) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| test_case.id().contains(filter.as_str()))
    }

    fn versions_of(&self, plugin: &PluginUnderTest, entry: Entry) -> Vec<Version> {
        let mut versions = Version::PUBLISHED.to_vec();
        versions.retain(|version| {
            plugin.versions.contains(version)
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
        let test_runs = self.test_runs();
        let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let slots: Vec<Mutex<Option<Ended<'_>>>> = test_runs.iter().map(|_| Mutex::new(None)).collect();
        thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, test_runs.len().max(1)) {
                scope.spawn(|| {
                    while let Some((&run, slot)) = {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        test_runs.get(index).zip(slots.get(index))
                    } {
                        let start = Instant::now();
                        let verdict = self.judge(run);
                        let end = Ended { run, verdict, time: start.elapsed() };
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
        if self.jobs > 1 && test_runs.len() > 1 {
            self.repeat_late(&mut ended);
        }
        ended
    }

    fn repeat_late(&self, ended: &mut [Ended<'_>]) {
        let mut failed_alone = BTreeSet::new();
        for end in ended.iter_mut().filter(|end| end.time > LATE && !end.verdict.is_settled()) {
            let plugin = &end.run.plugin.name;
            if failed_alone.contains(plugin) {
                continue;
            }
            let start = Instant::now();
            end.verdict = self.judge(end.run);
            end.time += start.elapsed();
            if !end.verdict.is_settled() {
                failed_alone.insert(plugin);
            }
        }
    }

    fn judge(&self, run: TestRun<'_>) -> Verdict {
        if !run.test_case.anywhere && !self.is_root {
            return Verdict::Skip("it needs root, to make network namespaces".to_owned());
        }
        match catch_unwind(AssertUnwindSafe(|| self.attempt(run))) {
            Ok(Ok(())) => Verdict::Pass,
            Ok(Err(Stop::Skip(why))) => Verdict::Skip(why),
            Ok(Err(Stop::Broken(error))) => Verdict::Broken(format!("{error:#}")),
            Ok(Err(Stop::Mismatch(mismatch))) => self.weigh(run, *mismatch),
            Err(panic) => Verdict::Broken(
                panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_else(|| "the test case panicked".to_owned()),
            ),
        }
    }

    fn attempt(&self, run: TestRun<'_>) -> TestResult {
        let test = TestContext::new(run.plugin, run.version, self.is_root)?;
        (run.test_case.run)(&test)
    }

    /// What a fault means, by the level of what is demanded.
    fn weigh(&self, run: TestRun<'_>, mismatch: Mismatch) -> Verdict {
        if let Some(reason) = self.known.reason(&run.plugin.name, &run.test_case.id(), run.version) {
            return Verdict::Known(mismatch, reason.to_owned());
        }
        match run.entry.requirement.level {
            Level::Must | Level::Interop => Verdict::Fail(mismatch),
            Level::Should | Level::Convention => Verdict::Warn(mismatch),
            Level::May | Level::Reference => Verdict::Note(mismatch),
        }
    }
}

fn last<T>(items: &[T]) -> &[T] {
    items.last().map_or(&[], std::slice::from_ref)
}

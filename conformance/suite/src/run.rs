//! Runs the test cases, several at a time.

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
use cni_runner::Version;

/// A test run that takes longer than this may have been delayed by others.
const LATE: Duration = Duration::from_secs(2);

/// Which requirements are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// MUST, SHOULD, MAY and CONVENTION.
    Spec,
    /// INTEROP and REFERENCE.
    Interop,
    /// All levels.
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

/// What to run.
#[derive(Debug)]
pub struct Plan {
    /// The plugins.
    pub plugins: Vec<PluginUnderTest>,
    /// The versions; all published versions if empty.
    pub versions: Vec<Version>,
    /// Which levels of requirements.
    pub profile: Profile,
    /// Runs only test cases whose ID contains one of these texts; all if empty.
    pub filters: Vec<String>,
    /// How many test cases run at the same time.
    pub jobs: usize,
    /// Whether the suite runs as root and so can make nodes.
    pub is_root: bool,
    /// Known failures.
    pub known: Deviations,
}

/// The result of one test run.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// The plugin keeps the requirement.
    Pass,
    /// The plugin violates a MUST or INTEROP.
    Fail(Mismatch),
    /// The plugin violates a SHOULD or CONVENTION.
    Warn(Mismatch),
    /// The plugin differs from a MAY or REFERENCE.
    Note(Mismatch),
    /// The plugin fails, which the file of known deviations lists with this reason.
    Known(Mismatch, String),
    /// The test case could not run, for this reason.
    Skip(String),
    /// The suite or the machine failed.
    Broken(String),
}

impl Verdict {
    /// Whether a repetition is pointless: the plugin passed, its failure is known, or the test case was
    /// skipped.
    fn is_settled(&self) -> bool {
        matches!(self, Verdict::Pass | Verdict::Known(..) | Verdict::Skip(_))
    }

    /// Whether this verdict makes the whole run fail.
    pub fn is_failure(&self) -> bool {
        matches!(self, Verdict::Fail(_) | Verdict::Broken(_))
    }

    /// The verdict as one lower-case word.
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

    /// The expected and the actual behaviour, if the plugin did not pass.
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

/// One test case on one plugin with one version.
#[derive(Debug, Clone, Copy)]
pub struct TestRun<'a> {
    /// The plugin.
    pub plugin: &'a PluginUnderTest,
    /// The requirement and its section.
    pub entry: Entry,
    /// The test case.
    pub test_case: &'static TestCase,
    /// The version.
    pub version: Version,
}

/// A finished test run.
#[derive(Debug, Clone)]
pub struct Ended<'a> {
    /// The test run.
    pub run: TestRun<'a>,
    /// Its result.
    pub verdict: Verdict,
    /// How long it took, including the making of its node and a repetition.
    pub time: Duration,
}

impl Plan {
    /// The test runs in the order of the report: by plugin, requirement, test case, version.
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

    /// Runs everything. It calls `progress` for each finished test run, in any order, with the number of
    /// those finished before.
    ///
    /// Failed test runs that took more than 2 seconds are then repeated one at a time, and the repetition
    /// counts: when many run at once, the kernel delays them while it makes and removes namespaces and links.
    /// Once a repetition of a plugin fails too, the plugin is at fault, and its other failures are not
    /// repeated.
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
            let TestRun { plugin: _, entry: _, test_case, version } = end.run;
            cni_lab::repeated(format_args!(
                "{plugin} {} {version}: {} after {:.1?}",
                test_case.id(),
                end.verdict.word(),
                end.time
            ));
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
            return Verdict::Skip("this needs root, to make network namespaces".to_owned());
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

    /// The verdict on a mismatch, by the requirement's level.
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

//! `ferrule test`: attaches two pods of its own to the node's network as a runtime does, and sends packets between them, the node and
//! a namespace that stands for the world outside. No packet leaves the node but echo requests to the health endpoints of other nodes,
//! and questions to a resolver that the caller names.
//!
//! `pods` attaches and detaches, also what a killed test has left. `outside` is that namespace. `traffic` sends, `checks`
//! judges, `isolation` and `nodes` too: the plugin `policy`, and the other nodes of a cluster. `why` looks for the reason of a failure.

mod checks;
mod isolation;
mod nodes;
mod outside;
mod pods;
mod scene;
mod traffic;
mod why;

use std::cell::OnceCell;
use std::fs::{File, TryLockError};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::file;
use serde::Serialize;
use serde_json::json;

pub(crate) use self::pods::LeftOver;

use self::outside::Outside;
use self::pods::{Attached, Site, capabilities};
use self::scene::Scene;
use crate::doctor::networks::{self, Network};
use crate::line::Line;
use crate::model::{SCHEMA, name};
use crate::node::{NOT_WHOLE, Roots};
use crate::sight::Sight;

/// Held while a test runs: what a test has left belongs to a killed one if nobody holds it.
const LOCK: &str = "/run/ferrule-test.lock";

/// What to test.
#[derive(Clone, Debug)]
pub struct Options {
    /// libcni's folder of results.
    pub results: PathBuf,
    /// The folder of the network configurations.
    pub conf_dir: PathBuf,
    /// The folders of the plugins, as in CNI_PATH.
    pub path: Vec<PathBuf>,
    /// How long one plugin may take.
    pub limit: Duration,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
    /// The network; the first one if there is no name.
    pub network: Option<String>,
    /// The resolver to ask from a pod.
    pub dns: Option<IpAddr>,
}

/// The outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It passed.
    Ok,
    /// It did not.
    Failed,
    /// It was not made.
    Skipped,
}

/// One test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Test {
    /// What was tested.
    pub test: String,
    /// The outcome.
    pub outcome: Outcome,
    /// What was seen, or why it failed or was not made.
    pub seen: String,
    /// What to do about a failure.
    pub remedy: Option<String>,
}

impl Test {
    fn ok(test: impl Into<String>, seen: impl Into<String>) -> Test {
        Test { test: test.into(), outcome: Outcome::Ok, seen: seen.into(), remedy: None }
    }

    fn skipped(test: impl Into<String>, why: impl Into<String>) -> Test {
        Test { outcome: Outcome::Skipped, ..Test::ok(test, why) }
    }

    fn failed(test: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Test {
        Test { outcome: Outcome::Failed, remedy: Some(remedy.into()), ..Test::ok(test, why) }
    }

    /// The lines for an operator.
    pub fn lines(&self) -> Vec<Line> {
        let first = Line::new(format_args!("{}: {}: {}", name(&self.outcome), self.test, self.seen));
        let remedy = self.remedy.iter().map(|remedy| Line::new(format_args!("    remedy: {remedy}")));
        [first].into_iter().chain(remedy).collect()
    }
}

/// Whether none of the tests failed.
pub fn is_passed(tests: &[Test]) -> bool {
    tests.iter().all(|test| test.outcome != Outcome::Failed)
}

/// All tests as JSON.
pub fn document(tests: &[Test]) -> String {
    json!({"schema": SCHEMA, "tests": tests, "failures": []}).to_string()
}

/// How many tests had each outcome.
pub fn summary(tests: &[Test]) -> String {
    let count = |outcome| tests.iter().filter(|test| test.outcome == outcome).count();
    let [ok, failed, skipped] = [Outcome::Ok, Outcome::Failed, Outcome::Skipped].map(count);
    format!("{ok} ok, {failed} failed, {skipped} skipped")
}

/// Runs all tests. `tell` gets each one when it is done. `is_ended` is asked between two of them.
///
/// # Errors
/// Another test runs, this is not the node, there is no network, or a former test's rest cannot be removed.
pub fn run(
    options: &Options,
    is_ended: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(&Test),
) -> Result<Vec<Test>, CniError> {
    let _lock = lock()?.ok_or_else(|| CniError::internal("another ferrule test runs"))?;
    let sight = Sight::of_check(options.init, &options.results);
    if let Some(why) = sight.partial.as_ref().filter(|_| sight.is_elsewhere) {
        return Err(CniError::internal(format!("{NOT_WHOLE}: {why}")));
    }
    let network = choose(options)?;
    let site = Site { path: &options.path, limit: options.limit };
    let mut tests = Vec::new();
    let mut add = |test: Test| {
        tell(&test);
        tests.push(test);
    };
    let left_over = LeftOver::find(&sight);
    if !left_over.is_empty() {
        left_over.remove(&site).map_err(CniError::internal)?;
        add(Test::ok("former test", "what a killed test had left is removed"));
    }
    let outside = Outside::make();
    let rights = capabilities(&network, outside.as_ref().ok().and_then(|outside| outside.host(true)));
    let made = site.attach(&network, &rights);
    match made {
        Ok(pods) => {
            add(Test::ok("attach", format!("two pods on {}: {}", network.subject(), Attached::told(&pods))));
            let scene = Scene {
                network: &network,
                pods: &pods,
                outside: outside.as_ref(),
                site: &site,
                rights: &rights,
                checked: OnceCell::new(),
            };
            for check in scene.checks(options.dns) {
                if is_ended() {
                    add(Test::skipped("the other tests", "a signal has ended the test"));
                    break;
                }
                check(&scene).into_iter().for_each(&mut add);
            }
        }
        Err(why) => add(Test::failed("attach", why, why::ATTACH)),
    }
    drop(outside);
    let removed = LeftOver::find(&Sight::of_check(options.init, &options.results)).remove(&site);
    add(match removed {
        Ok(()) => Test::ok("detach", "the pods are gone"),
        Err(why) => Test::failed("detach", why, why::DETACH),
    });
    Ok(tests)
}

/// What a killed test has left, with the lock that keeps further tests away.
///
/// # Errors
/// The lock's file cannot be opened.
pub(crate) fn left_over(roots: &Roots) -> Result<Option<(File, LeftOver)>, CniError> {
    let sight = Sight::of_check(roots.init, &roots.results);
    let left = LeftOver::find(&sight);
    // In another network namespace, the folder of namespaces may be that of another node.
    if left.is_empty() || sight.partial.is_some() {
        return Ok(None);
    }
    let Some(lock) = lock()? else { return Ok(None) };
    // A test may have ended meanwhile.
    Ok(Some((lock, LeftOver::find(&sight))))
}

/// The lock, unless a test holds it.
///
/// # Errors
/// Its file cannot be opened.
fn lock() -> Result<Option<File>, CniError> {
    let file = file::open_lock(Path::new(LOCK), 0o600).context(|| format!("open {LOCK}"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(CniError::internal(format!("lock {LOCK}: {error}"))),
    }
}

/// The network of this name, or the one that runtimes take.
fn choose(options: &Options) -> Result<Network, CniError> {
    let (networks, findings) = networks::read(&options.conf_dir);
    let is_wanted = |network: &Network| options.network.as_ref().is_none_or(|name| *name == network.name);
    networks.into_iter().find(is_wanted).ok_or_else(|| {
        let folder = options.conf_dir.display();
        let finding = findings.first().map(|one| format!("; {}: {}", one.subject, one.problem));
        let wanted = options.network.as_ref().map(|name| format!(" {name}"));
        let (wanted, finding) = (wanted.unwrap_or_default(), finding.unwrap_or_default());
        CniError::internal(format!("there is no network{wanted} in {folder}{finding}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_lines_and_a_document() {
        let tests = [Test::ok("a", "b"), Test::failed("c", "d\n\u{1b}[1m", "e"), Test::skipped("f", "g")];
        let lines: Vec<String> = tests.iter().flat_map(Test::lines).map(|line| line.to_string()).collect();
        assert_eq!(lines, ["ok: a: b", "failed: c: d  [1m", "    remedy: e", "skipped: f: g"]);
        assert_eq!(summary(&tests), "1 ok, 1 failed, 1 skipped");
        assert!(!is_passed(&tests) && is_passed(&tests[..1]));
        assert!(document(&tests).contains(r#""outcome":"failed""#));
    }
}

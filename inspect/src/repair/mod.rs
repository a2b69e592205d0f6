//! `ferrule repair`: makes again what CHECK refuses, for every live attachment of libcni's cache.
//!
//! The plugins run in this process: `repair` is no verb of CNI, so only plugins of this program have it. An attachment is
//! repaired only if `guard` proves that neither ADD nor DEL runs for it.

mod guard;
mod report;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{iter, thread};

use cni_common::plugin::{Delegate, Environment, Plugin, Repair, Verb};
use cni_common::spec::{CniError, Context as _, NetConf};
use ferrule_kernel::lock::Lock;
use itertools::Itertools as _;

use self::guard::Guard;
pub use self::report::{Finding, Outcome, Repaired};
use crate::cache::{Cache, Entry};
use crate::check::reason_to_skip;
use crate::node::NOT_WHOLE;
use crate::scene::{Namespace, lacks};
use crate::sight::{self, Sight};
use crate::totals;
use crate::why::is_container;

/// Held by the one process that changes what plugins have made.
pub(crate) const LOCK: &str = "/run/ferrule-repair.lock";
/// How long a call of the runtime that came in between may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long no plugin must run for a container that has ended: libcni starts one after the other, and removes the cached result at the end.
const QUIET: Duration = Duration::from_secs(1);
/// The pause between two looks at the processes while such a call runs.
const PAUSE: Duration = Duration::from_millis(50);

/// What to repair.
#[derive(Clone, Debug)]
pub struct Options {
    /// libcni's folder of results.
    pub results: PathBuf,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
    /// The folders of the plugins.
    pub path: Vec<PathBuf>,
    /// Only this container: its ID, or its pod.
    pub container: Option<String>,
    /// Only find out.
    pub dry_run: bool,
}

/// Checks all attachments, then repairs those that CHECK refuses, one after the other: threads would take three times as long, because
/// the allocator has one lock. `plugins` are those of this program.
/// Touches no other attachment once `is_ended`.
///
/// # Errors
/// This process does not see the whole node or lacks a right, no attachment has the name, or another repair runs and does not end.
pub fn run(
    plugins: &'static [&'static Plugin],
    options: &Options,
    is_ended: &dyn Fn() -> bool,
) -> Result<Repaired, CniError> {
    let refuse = |why: String| CniError::internal(format!("nothing is repaired: {why}"));
    let not_whole = |why: String| refuse(format!("{NOT_WHOLE}: {why}"));
    let Options { results, init, path, container, dry_run } = options;
    let sight = Sight::of_all(*init, iter::once(results.as_path()));
    if let Some(why) = sight.partial.clone() {
        return Err(not_whole(why));
    }
    if let Some(right) = lacks(&sight::read("/proc/thread-self/status").unwrap_or_default()) {
        return Err(refuse(format!("plugins need {right}, which this process lacks")));
    }
    let _lock = match dry_run {
        true => None,
        false => Some(Lock::take(LOCK.as_ref(), 0o600).context(|| "wait for another repair")?),
    };
    let mut cache = Cache::read(results, &sight);
    let superseded = superseded(&cache.entries);
    let is_wanted =
        |entry: &Entry| container.as_ref().is_none_or(|who| is_container(who, &entry.owner, Some(entry)));
    cache.entries.retain(|entry| !entry.is_loopback() && is_wanted(entry));
    let named = container.as_ref().filter(|_| cache.entries.is_empty());
    if let Some(who) = named {
        return Err(refuse(format!("no cached result is that of {who:?}")));
    }
    let path = path.iter().map(|folder| folder.display()).join(":");
    let mender = Mender { plugins, path, sight: &sight, dry_run: *dry_run, is_ended };
    let mut failures = cache.failures;
    let look = |entry| mender.look(entry, superseded.get(&entry.file).cloned());
    let mut found: Vec<Found<'_>> = cache.entries.iter().map(look).collect();
    if found.iter().any(Found::is_broken) {
        let guard = Guard::read(&sight).map_err(not_whole)?;
        found.iter_mut().for_each(|found| mender.mend(found, &guard));
        failures.extend(mender.settle(&mut found));
    }
    let mut findings: Vec<Finding> = found.iter().flat_map(Found::findings).collect();
    findings.sort();
    if !cache.is_readable {
        failures.push(format!("cannot read the cached results in {}", results.display()));
    }
    let postponed = found.iter().filter(|found| found.skipped.is_some() && found.is_broken()).count();
    let mut repaired = Repaired { findings, failures, postponed };
    if !dry_run {
        let [done, failed] = [Outcome::Repaired, Outcome::Failed].map(|outcome| repaired.count(outcome));
        repaired.failures.extend(totals::add(&totals::REPAIR, done, failed).err());
    }
    Ok(repaired)
}

/// An attachment, and the answers of its plugins.
struct Found<'e> {
    entry: &'e Entry,
    /// Its namespace, so that no other one gets the same inode number until the end of the repair.
    _held: Option<File>,
    /// Why it is left alone.
    skipped: Option<String>,
    plugins: Vec<Step>,
}

/// What a plugin says of an attachment.
struct Step {
    plugin: String,
    repair: Repair,
    /// Whether it was called, so that it may have made something again.
    is_tried: bool,
}

impl Found<'_> {
    fn is_broken(&self) -> bool {
        self.plugins.iter().any(|step| matches!(step.repair, Repair::Possible(_)))
    }

    fn findings(&self) -> Vec<Finding> {
        let finding = |outcome, plugin: Option<&String>, reason: Option<String>| Finding {
            outcome,
            owner: self.entry.owner.clone(),
            plugin: plugin.cloned(),
            reason,
        };
        if self.skipped.is_some() {
            return vec![finding(Outcome::Skipped, None, self.skipped.clone())];
        }
        let of_plugin = |Step { plugin, repair, .. }: &Step| {
            let (outcome, why) = match repair {
                Repair::Sound => return None,
                Repair::Possible(why) => (Outcome::Possible, why.to_string()),
                Repair::Done(why) => (Outcome::Repaired, why.to_string()),
                Repair::Failed(why) => (Outcome::Failed, why.to_string()),
                Repair::Foreign => (Outcome::Skipped, report::FOREIGN.to_owned()),
            };
            Some(finding(outcome, Some(plugin), Some(why)))
        };
        let mut findings: Vec<Finding> = self.plugins.iter().filter_map(of_plugin).collect();
        if self.plugins.iter().all(|step| matches!(step.repair, Repair::Sound | Repair::Foreign)) {
            findings.push(finding(Outcome::Sound, None, None));
        }
        findings
    }
}

/// Calls the plugins.
struct Mender<'s> {
    plugins: &'static [&'static Plugin],
    path: String,
    sight: &'s Sight,
    dry_run: bool,
    is_ended: &'s dyn Fn() -> bool,
}

impl Mender<'_> {
    /// Checks an attachment, unless its namespace has another owner.
    fn look<'e>(&self, entry: &'e Entry, superseded: Option<String>) -> Found<'e> {
        let skipped = reason_to_skip(entry, self.sight, None).or(superseded);
        let mut found = Found { entry, _held: None, skipped, plugins: Vec::new() };
        if found.skipped.is_none() {
            let names = entry.plugins().into_iter().map(|plugin| plugin["type"].as_str().unwrap_or_default());
            let look = |(at, name): (usize, &str)| {
                let repair = self.look_at(entry, at);
                Step { plugin: name.to_owned(), repair, is_tried: false }
            };
            found.plugins = names.enumerate().map(look).collect();
        }
        found
    }

    /// Repairs an attachment, or finds the obstacle.
    fn mend(&self, found: &mut Found<'_>, guard: &Guard) {
        if !found.is_broken() {
            return;
        }
        found._held = File::open(&found.entry.netns).ok();
        found.skipped = match (self.is_ended)() {
            true => Some("ended by a signal".to_owned()),
            false => guard.obstacle(found.entry, self.sight),
        };
        if found.skipped.is_some() || self.dry_run {
            return;
        }
        for at in 0..found.plugins.len() {
            let has_interface = || {
                at == 0
                    || matches!(found.plugins[0].repair, Repair::Sound | Repair::Done(_))
                    || has_address(found.entry)
            };
            let found_now = match &found.plugins[at].repair {
                // A bridge that was made again may lack what a later plugin sets on it.
                Repair::Sound if found.plugins[..at].iter().any(|step| step.is_tried) && has_interface() => {
                    self.look_at(found.entry, at)
                }
                found_before => found_before.clone(),
            };
            let Repair::Possible(why) = found_now else {
                found.plugins[at].repair = found_now;
                continue;
            };
            // The plugins before this one took their time.
            found.skipped = guard.obstacle(found.entry, self.sight);
            if found.skipped.is_some() {
                break;
            }
            let is_tried = has_interface();
            let repair = match is_tried {
                true => self.repair(found.entry, at, &why),
                false => Repair::Failed(CniError::internal(format!(
                    "{why}; cannot be made again: the container has none of its addresses"
                ))),
            };
            let step = &mut found.plugins[at];
            (step.repair, step.is_tried) = (repair, is_tried);
        }
    }

    /// Looks whether ADD or DEL came in between. Returns what could not be found out or undone.
    fn settle(&self, found: &mut [Found<'_>]) -> Vec<String> {
        let mut tried: Vec<&mut Found<'_>> =
            found.iter_mut().filter(|found| found.plugins.iter().any(|step| step.is_tried)).collect();
        if tried.is_empty() {
            return Vec::new();
        }
        // Between two plugins of a DEL no process works for the container, so a single look proves nothing.
        let (start, mut disturbed) = (Instant::now(), HashSet::new());
        loop {
            let guard = match Guard::read(self.sight) {
                Err(why) => return vec![why],
                Ok(guard) => guard,
            };
            let obstructed = tried.iter().filter(|found| guard.obstacle(found.entry, self.sight).is_some());
            disturbed.extend(obstructed.map(|found| &found.entry.file));
            if start.elapsed() > QUIET {
                break;
            }
            thread::sleep(PAUSE);
        }
        tried.retain(|found| disturbed.contains(&found.entry.file));
        let mut failures = Vec::new();
        for found in tried {
            match self.wait_for_end(found) {
                Ok(why) => found.skipped = why.or(found.skipped.take()),
                Err(why) => {
                    failures.push(format!("{}: {why}; ferrule gc removes what is left", found.entry.owner))
                }
            }
        }
        failures
    }

    /// Waits for the end of the call that came in between. After a DEL, calls DEL of the plugins that were called. Returns why the
    /// attachment has ended.
    fn wait_for_end(&self, found: &Found<'_>) -> Result<Option<String>, String> {
        let (start, mut quiet) = (Instant::now(), None);
        while start.elapsed() < LIMIT {
            let guard = Guard::read(self.sight)?;
            if guard.caller(found.entry).is_some() {
                quiet = None;
            } else if matches!(found.entry.file.try_exists(), Ok(false)) {
                self.del(found).map_err(|error| error.to_string())?;
                return Ok(Some("it was deleted meanwhile".to_owned()));
            } else if quiet.get_or_insert_with(Instant::now).elapsed() > QUIET {
                let why = "its container has ended or started again meanwhile";
                return Ok(guard.obstacle(found.entry, self.sight).map(|_| why.to_owned()));
            }
            thread::sleep(PAUSE);
        }
        Err("a call of the runtime does not end".to_owned())
    }

    /// Runs DEL of the plugins that were repaired, the last one first. If the path leads to another namespace by now, or to none, they
    /// get no path, as from a runtime whose namespace is gone: the next container must not lose its interface.
    fn del(&self, found: &Found<'_>) -> Result<(), CniError> {
        let Found { entry, plugins, .. } = found;
        let tried = plugins.iter().enumerate().filter(|(_, step)| step.is_tried);
        tried.rev().try_for_each(|(at, _)| {
            let is_same = self.sight.netns(&entry.netns) == entry.netns_state;
            let netns = if is_same { entry.netns.as_str() } else { "" };
            self.with(entry, at, netns, |delegate| delegate.call(Verb::Del))?
        })
    }

    fn look_at(&self, entry: &Entry, plugin: usize) -> Repair {
        self.with(entry, plugin, &entry.netns, |delegate| delegate.look()).unwrap_or_else(Repair::Failed)
    }

    fn repair(&self, entry: &Entry, plugin: usize, why: &CniError) -> Repair {
        self.with(entry, plugin, &entry.netns, |delegate| delegate.repair(why)).unwrap_or_else(Repair::Failed)
    }

    /// Calls a plugin of the chain with the request that libcni makes from the cache.
    fn with<T>(
        &self,
        entry: &Entry,
        plugin: usize,
        netns: &str,
        call: impl FnOnce(Delegate<'_>) -> T,
    ) -> Result<T, CniError> {
        let plugin = entry.plugins()[plugin];
        let env = Environment {
            container_id: entry.owner.container.clone().unwrap_or_default(),
            ifname: entry.owner.ifname.clone().unwrap_or_default(),
            netns: netns.to_owned(),
            args: entry.args(),
            path: self.path.clone(),
            siblings: self.plugins,
            ..Environment::default()
        };
        let config = NetConf::parse(entry.request(plugin).into_bytes())?;
        Ok(call(Delegate::find(plugin["type"].as_str().unwrap_or_default(), &env, &config)?))
    }
}

/// The entries whose namespace and interface another container has got later, by file, and why: a container that ended without DEL has
/// left its result, and its path is used again. The newest result proves itself; if the times do not tell, none does.
fn superseded(entries: &[Entry]) -> HashMap<PathBuf, String> {
    let place = |entry: &Entry| Some((entry.netns_state.inode()?, entry.owner.ifname.clone()));
    let places = entries.iter().filter_map(|entry| Some((place(entry)?, entry))).into_group_map();
    let rival = |entry: &Entry, others: &[&Entry]| {
        let other = others.iter().find(|other| other.owner != entry.owner && other.since >= entry.since)?;
        Some(format!(
            "{} has its namespace and interface, by a newer result or one of the same age",
            other.owner
        ))
    };
    let of_place = |others: Vec<&Entry>| {
        let found = others.iter().filter_map(|entry| Some((entry.file.clone(), rival(entry, &others)?)));
        found.collect::<Vec<_>>()
    };
    places.into_values().flat_map(of_place).collect()
}

/// Whether the container has one of the addresses of its result. A path in `/proc` may lead to another container by now; CHECK of
/// the plugin that has made the interface would have found that.
fn has_address(entry: &Entry) -> bool {
    let inside = Namespace { path: entry.netns.clone(), ..Namespace::default() }.read(false);
    inside.is_ok_and(|inside| inside.addresses.iter().any(|address| entry.addresses.contains(address)))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ferrule_kit::presence::Presence;

    use super::*;
    use crate::model::Owner;

    #[test]
    fn a_namespace_and_interface_belong_to_the_newest_result() {
        let entry = |container: &str, ifname: &str, inode: u64, age: u64| Entry {
            owner: Owner::container(container).on("net").with_ifname(ifname),
            file: container.into(),
            netns_state: Presence::Present((4, inode)),
            since: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(100 - age)),
            ..Entry::default()
        };
        let found = superseded(&[
            entry("crashed", "eth0", 7, 9),
            entry("lives", "eth0", 7, 1),
            entry("second", "eth1", 7, 5),
            entry("other", "eth0", 8, 9),
            entry("one", "eth0", 9, 3),
            entry("same", "eth0", 9, 3),
        ]);
        let mut names: Vec<_> = found.keys().map(|file| file.display().to_string()).collect();
        names.sort();
        assert_eq!(names, ["crashed", "one", "same"]);
        let why = &found[&PathBuf::from("crashed")];
        assert!(
            why.starts_with("container lives (interface eth0 on network net) has its namespace"),
            "{why}"
        );
    }
}

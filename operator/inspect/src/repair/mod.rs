//! `ferrule repair`: makes again what CHECK refuses, for every live attachment of libcni's cache.
//!
//! The plugins run in this process: `repair` is no verb of CNI, so only plugins of this program have it. An attachment is
//! repaired only if `guard` proves that neither ADD nor DEL runs for it.

mod guard;
mod mend;
mod report;
mod settle;

use std::collections::HashMap;
use std::fs::File;
use std::iter;
use std::path::PathBuf;

use cni_common::plugin::{Plugin, Repair};
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::lock::Lock;
use itertools::Itertools as _;

use self::guard::Guard;
use self::mend::Mender;
pub use self::report::{Finding, Outcome, Repaired};
use crate::cache::{Cache, Entry};
use crate::node::NOT_WHOLE;
use crate::scene::lacks;
use crate::sight::{self, Sight};
use crate::totals;
use crate::why::is_container;

/// Held by the one process that changes what plugins have made.
pub(crate) const LOCK: &str = "/run/ferrule-repair.lock";

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
    let mender = Mender::new(plugins, path, &sight, *dry_run, is_ended);
    let mut failures = cache.failures;
    let look = |entry| mender.look(entry, superseded.get(&entry.file).cloned());
    let mut found: Vec<Found<'_>> = cache.entries.iter().map(look).collect();
    if found.iter().any(Found::is_broken) {
        let mut guard = Guard::read(&sight).map_err(not_whole)?;
        found.iter_mut().for_each(|found| mender.mend(found, &guard));
        failures.extend(mender.settle(&mut found, &mut guard));
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
    /// The namespace of a broken attachment. While it is open, its inode number is not used again.
    held: Option<File>,
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

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

//! After the repairs: whether ADD or DEL came in between.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use cni_common::plugin::Verb;
use cni_common::spec::CniError;

use super::Found;
use super::guard::Guard;
use super::mend::Mender;

/// How long the calls of the runtime that came in between may take, for all containers together.
const LIMIT: Duration = Duration::from_secs(60);
/// How long no plugin must run for a container that has ended: libcni starts one after the other, and removes the cached result at the end.
const QUIET: Duration = Duration::from_secs(1);
/// The pause between two looks at the processes while such a call runs.
const PAUSE: Duration = Duration::from_millis(50);

/// How a call of the runtime that came in between goes on.
enum Call {
    /// It may still run.
    Runs,
    /// It has ended, and the attachment with it if there is a reason.
    Ended(Option<String>),
}

impl Mender<'_> {
    /// Looks whether ADD or DEL came in between. Returns what could not be found out or undone.
    pub(super) fn settle(&self, found: &mut [Found<'_>], guard: &mut Guard) -> Vec<String> {
        let mut tried: Vec<&mut Found<'_>> =
            found.iter_mut().filter(|found| found.plugins.iter().any(|step| step.is_tried)).collect();
        if tried.is_empty() {
            return Vec::new();
        }
        // Between two plugins of a DEL no process works for the container, so a single look proves nothing.
        let (start, mut disturbed) = (Instant::now(), HashSet::new());
        loop {
            if let Err(why) = guard.read_callers(self.sight) {
                return vec![why];
            }
            let obstructed = tried.iter().filter(|found| guard.obstacle(found.entry, self.sight).is_some());
            disturbed.extend(obstructed.map(|found| &found.entry.file));
            if start.elapsed() > QUIET {
                break;
            }
            thread::sleep(PAUSE);
        }
        tried.retain(|found| disturbed.contains(&found.entry.file));
        self.wait_for_ends(tried, guard)
    }

    /// Waits for the end of the calls that came in between, all at once: one that does not end holds up no other one. Returns what could
    /// not be found out or undone.
    fn wait_for_ends(&self, mut waiting: Vec<&mut Found<'_>>, guard: &mut Guard) -> Vec<String> {
        let (start, mut quiet, mut failures) = (Instant::now(), HashMap::new(), Vec::new());
        while !waiting.is_empty() {
            let read = guard.read_callers(self.sight);
            waiting.retain_mut(|found| {
                let since = quiet.entry(&found.entry.file).or_insert_with(Instant::now);
                let failure = match read.clone().and_then(|()| self.end_of_call(found, since, guard)) {
                    Ok(Call::Runs) if start.elapsed() <= LIMIT => return true,
                    Ok(Call::Runs) => "a call of the runtime does not end".to_owned(),
                    Ok(Call::Ended(why)) => {
                        found.skipped = why.or(found.skipped.take());
                        return false;
                    }
                    Err(why) => why,
                };
                failures.push(format!("{}: {failure}; ferrule gc removes what is left", found.entry.owner));
                false
            });
            if !waiting.is_empty() {
                thread::sleep(PAUSE);
            }
        }
        failures
    }

    /// Whether the call that came in between has ended, and why the attachment has ended with it. After a DEL, calls DEL of the plugins
    /// that were called. `quiet` is since when no plugin runs for the container.
    fn end_of_call(&self, found: &Found<'_>, quiet: &mut Instant, guard: &mut Guard) -> Result<Call, String> {
        if guard.caller(found.entry).is_some() {
            *quiet = Instant::now();
        } else if matches!(found.entry.file.try_exists(), Ok(false)) {
            self.del(found).map_err(|error| error.to_string())?;
            return Ok(Call::Ended(Some("it was deleted meanwhile".to_owned())));
        } else if quiet.elapsed() > QUIET {
            *guard = Guard::read(self.sight)?;
            let why = "its container has ended or started again meanwhile";
            return Ok(Call::Ended(guard.obstacle(found.entry, self.sight).map(|_| why.to_owned())));
        }
        Ok(Call::Runs)
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
}

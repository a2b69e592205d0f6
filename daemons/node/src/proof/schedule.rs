//! When each proof is asked for again. Pure: the caller has the clock and the sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferrule_kernel::ip::IpFamily;

use super::Proof;

/// The least time between two requests: 10 a second.
const GAP: Duration = Duration::from_millis(100);
/// What each target adds to the time until it is asked again: 8 requests a second are the regular ones, the rest is for what is
/// urgent.
const SHARE: Duration = Duration::from_millis(125);
/// The least time until a target is asked again.
const SHORTEST: Duration = Duration::from_secs(5);
/// The longest wait for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(1);
/// So many requests in a row without an answer are a loss.
const MISSES: u32 = 3;
/// All nodes learn of a new endpoint in the same moment. Each one waits for a random part of this time for each target that it has,
/// but not longer than [`LONGEST_SPREAD`].
const SPREAD: Duration = Duration::from_micros(800);
const LONGEST_SPREAD: Duration = Duration::from_secs(8);

/// The time by the clock that never jumps, and for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Now {
    pub(super) mono: Duration,
    pub(super) wall: SystemTime,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The gateway of this node's pods.
    Gateway(IpFamily),
    /// An address that this node forwards to.
    Forwarded(IpFamily),
    /// The endpoint of another node.
    Peer(Arc<str>, IpFamily),
}

/// Where it is, and the size of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: IpAddr,
    /// The whole IP packet in bytes.
    pub size: u16,
}

/// The order of requests that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Local,
    New,
    Again,
    Regular,
}

const LANES: [Lane; 4] = [Lane::Local, Lane::New, Lane::Again, Lane::Regular];

#[derive(Debug)]
struct Entry {
    target: Target,
    lane: Lane,
    /// When it is asked next, or while a request is on its way, when that counts as lost.
    due: Duration,
    is_asked: bool,
    /// The last answer.
    answered: Option<SystemTime>,
    misses: u32,
    /// The first request in a row without an answer, and what the last one met.
    missed: Option<(SystemTime, String)>,
    asked_at: SystemTime,
}

impl Entry {
    fn is_lost(&self) -> bool {
        self.misses >= MISSES
    }
}

/// The targets and their times.
#[derive(Debug)]
pub(super) struct Schedule {
    entries: BTreeMap<Key, Entry>,
    lanes: BTreeSet<(Lane, Duration, Key)>,
    /// The requests without an answer yet.
    asked: BTreeSet<(Duration, Key)>,
    /// No request before.
    free: Duration,
    /// The lane of the last request. New ones and those that are asked again take turns: neither holds up the other.
    last: Lane,
    random: std::hash::RandomState,
    has_changed: bool,
}

impl Schedule {
    pub(super) fn new() -> Schedule {
        Schedule {
            entries: BTreeMap::new(),
            lanes: BTreeSet::new(),
            asked: BTreeSet::new(),
            free: Duration::ZERO,
            last: Lane::Regular,
            random: std::hash::RandomState::new(),
            has_changed: true,
        }
    }

    /// Takes the targets. What is known of the same target stays.
    pub(super) fn set(&mut self, targets: &BTreeMap<Key, Target>, now: Now) {
        let gone: Vec<Key> = self
            .entries
            .iter()
            .filter(|(key, e)| targets.get(*key) != Some(&e.target))
            .map(|(k, _)| k.clone())
            .collect();
        for key in gone {
            self.remove(&key);
            self.has_changed = true;
        }
        let spread = LONGEST_SPREAD.min(SPREAD * u32::try_from(targets.len()).unwrap_or(u32::MAX));
        for (key, target) in targets {
            if self.entries.contains_key(key) {
                continue;
            }
            let part =
                f64::from(u16::try_from(self.random.hash_one((key.name(), now.mono)) % 1000).unwrap_or(0))
                    / 1000.0;
            let (lane, due) = match key {
                Key::Peer(..) => (Lane::New, now.mono + spread.mul_f64(part)),
                Key::Gateway(_) | Key::Forwarded(_) => (Lane::Local, now.mono),
            };
            let entry = Entry {
                target: *target,
                lane,
                due,
                is_asked: false,
                answered: None,
                misses: 0,
                missed: None,
                asked_at: now.wall,
            };
            self.lanes.insert((lane, due, key.clone()));
            self.entries.insert(key.clone(), entry);
            self.has_changed = true;
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            match entry.is_asked {
                true => self.asked.remove(&(entry.due, key.clone())),
                false => self.lanes.remove(&(entry.lane, entry.due, key.clone())),
            };
        }
    }

    /// What is to be asked now. It counts as asked.
    pub(super) fn next(&mut self, now: Now) -> Option<(Key, Target)> {
        if now.mono < self.free {
            return None;
        }
        let order = match self.last {
            Lane::New => [Lane::Local, Lane::Again, Lane::New, Lane::Regular],
            _ => LANES,
        };
        let key = order.iter().find_map(|lane| {
            let (_, due, key) = self.head(*lane)?;
            (*due <= now.mono).then(|| key.clone())
        })?;
        let entry = self.entries.get_mut(&key)?;
        self.lanes.remove(&(entry.lane, entry.due, key.clone()));
        self.last = entry.lane;
        (entry.is_asked, entry.due, entry.asked_at) = (true, now.mono + ANSWER, now.wall);
        self.asked.insert((entry.due, key.clone()));
        self.free = now.mono + GAP;
        Some((key, entry.target))
    }

    fn head(&self, lane: Lane) -> Option<&(Lane, Duration, Key)> {
        self.lanes
            .range((lane, Duration::ZERO, Key::Gateway(IpFamily::V4))..)
            .next()
            .filter(|head| head.0 == lane)
    }

    /// When something is to be done next.
    pub(super) fn wake(&self) -> Option<Duration> {
        let due = LANES.iter().filter_map(|lane| self.head(*lane)).map(|head| head.1.max(self.free)).min();
        let lost = self.asked.first().map(|(due, _)| *due);
        due.into_iter().chain(lost).min()
    }

    /// An answer from this target. It may come late.
    pub(super) fn answered(&mut self, key: &Key, now: Now) {
        let interval = self.interval();
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.has_changed |= entry.answered.is_none() || entry.is_lost();
        (entry.answered, entry.misses, entry.missed) = (Some(now.wall), 0, None);
        let lane = if entry.lane == Lane::Local { Lane::Local } else { Lane::Regular };
        self.plan(key, lane, now.mono + interval);
    }

    /// The request could not be sent.
    pub(super) fn failed(&mut self, key: &Key, now: Now, why: String) {
        self.miss(key, now, why, ANSWER);
    }

    /// Counts the requests whose time is over.
    pub(super) fn expire(&mut self, now: Now) {
        while let Some((due, key)) = self.asked.first().cloned()
            && due <= now.mono
        {
            let Some(target) = self.entries.get(&key).map(|entry| entry.target) else { break };
            self.miss(
                &key,
                now,
                format!("no answer from {} to requests of {} bytes", target.address, target.size),
                Duration::ZERO,
            );
        }
    }

    fn miss(&mut self, key: &Key, now: Now, why: String, pause: Duration) {
        let interval = self.interval();
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.misses = entry.misses.saturating_add(1);
        let since = entry.missed.take().map_or(entry.asked_at, |(since, _)| since);
        entry.missed = Some((since, why));
        self.has_changed |= entry.misses == MISSES;
        let lane = match (entry.lane, entry.is_lost()) {
            (Lane::Local, _) => Lane::Local,
            (_, true) => Lane::Regular,
            (_, false) => Lane::Again,
        };
        let doubled = SHORTEST.saturating_mul(1 << entry.misses.saturating_sub(MISSES).min(10));
        let wait = if entry.is_lost() { interval.min(doubled) } else { pause };
        self.plan(key, lane, now.mono + wait);
    }

    fn plan(&mut self, key: &Key, lane: Lane, due: Duration) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        match std::mem::replace(&mut entry.is_asked, false) {
            true => self.asked.remove(&(entry.due, key.clone())),
            false => self.lanes.remove(&(entry.lane, entry.due, key.clone())),
        };
        (entry.lane, entry.due) = (lane, due);
        self.lanes.insert((lane, due, key.clone()));
    }

    /// The time until a target that answers is asked again.
    fn interval(&self) -> Duration {
        SHORTEST.max(SHARE * u32::try_from(self.entries.len()).unwrap_or(u32::MAX))
    }

    /// Whether a proof is another kind of proof since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// What is known of a target.
    pub(super) fn proof(&self, key: &Key) -> Option<Proof> {
        let entry = self.entries.get(key)?;
        Some(match (&entry.missed, entry.answered) {
            (Some((since, why)), _) if entry.is_lost() => Proof::Lost { since: *since, why: why.clone() },
            (_, Some(at)) => Proof::Proved { at },
            (_, None) => Proof::Unknown(format!("{} was not asked yet", entry.target.address)),
        })
    }

    /// How many requests in a row had no answer.
    pub(super) fn misses(&self, key: &Key) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.misses)
    }
}

impl Key {
    fn name(&self) -> &str {
        match self {
            Key::Peer(name, _) => name,
            Key::Gateway(_) | Key::Forwarded(_) => "",
        }
    }
}

#[cfg(test)]
mod tests;

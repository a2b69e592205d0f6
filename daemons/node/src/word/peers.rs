//! How the other nodes stand. A node that is not Ready, new, or starting again is not lost.

use std::collections::BTreeMap;
use std::time::SystemTime;

use ipnetwork::IpNetwork;

use super::Facts;
use super::facts::has_way;
use crate::cluster::Peer;
use crate::plan::State;
use crate::proof::Proof;

/// A new node may take so many times the patience.
const NEW: u32 = 5;

/// How a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its endpoint has answered.
    Proved,
    /// Nothing is known: it has no endpoint, or was not asked yet.
    Unknown,
    /// It has never answered, and is young.
    New,
    /// Its condition Ready is not True.
    NotReady,
    /// It does not answer for a short time, or has become Ready a short time ago.
    Restarting,
    /// Its Node is Ready, but it has no way for long.
    Waits,
    /// Its Node is Ready, and its endpoint does not answer.
    Lost {
        /// In no family.
        is_whole: bool,
    },
}

impl Standing {
    /// The words of the metric.
    pub const KEYS: [&str; 7] = ["proved", "unknown", "new", "not_ready", "restarting", "waits", "lost"];

    /// The word in the status and the metric.
    pub fn key(self) -> &'static str {
        match self {
            Standing::Proved => "proved",
            Standing::Unknown => "unknown",
            Standing::New => "new",
            Standing::NotReady => "not_ready",
            Standing::Restarting => "restarting",
            Standing::Waits => "waits",
            Standing::Lost { .. } => "lost",
        }
    }
}

/// What the daemon remembers of the other nodes.
#[derive(Debug, Default)]
pub struct Book {
    seen: BTreeMap<String, Seen>,
    is_begun: bool,
}

#[derive(Debug)]
struct Seen {
    /// A node that registers again has another one.
    uid: String,
    /// When it came into the cluster, as far as this daemon can know.
    came: SystemTime,
    is_ready: bool,
    /// When it became Ready, if this daemon has seen that.
    ready: SystemTime,
    has_answered: bool,
    /// Since when it has no way.
    waits: Option<SystemTime>,
}

impl Book {
    /// Notes what has changed.
    pub(super) fn note(&mut self, facts: &Facts<'_>) {
        let nodes = &facts.plan.nodes;
        self.seen.retain(|name, _| nodes.contains_key(name));
        for (name, states) in nodes {
            let Some(peer) = facts.peers.get(name) else { continue };
            if self.seen.get(name).is_none_or(|seen| seen.uid != peer.uid) {
                // Those of the first list have come before this daemon.
                let came = if self.is_begun { facts.now } else { created(peer).min(facts.now) };
                let (uid, is_ready) = (peer.uid.clone(), peer.is_ready);
                let ready = SystemTime::UNIX_EPOCH;
                let seen = Seen { uid, came, is_ready, ready, has_answered: false, waits: None };
                self.seen.insert(name.clone(), seen);
            }
            let Some(seen) = self.seen.get_mut(name) else { continue };
            if peer.is_ready && !seen.is_ready {
                seen.ready = facts.now;
            }
            seen.is_ready = peer.is_ready;
            let proofs = facts.proofs.peers.get(name).into_iter().flatten();
            seen.has_answered |=
                proofs.map(|(_, proof)| proof).any(|proof| matches!(proof, Proof::Proved { .. }));
            let waits = states.iter().any(|(_, state)| matches!(state, State::Waits(_)));
            seen.waits = waits.then(|| seen.waits.unwrap_or(facts.now));
        }
        self.is_begun |= facts.unknown.is_none();
    }

    /// How a node stands that [`Book::note`] has noted.
    pub(super) fn standing(&self, name: &str, states: &[(IpNetwork, State)], facts: &Facts<'_>) -> Standing {
        let Some(seen) = self.seen.get(name) else { return Standing::Unknown };
        let proofs = facts.proofs.peers.get(name);
        let of = |wanted: fn(&Proof) -> bool| proofs.into_iter().flatten().any(|(_, proof)| wanted(proof));
        let is_proved = of(|proof| matches!(proof, Proof::Proved { .. }));
        let lost = proofs.into_iter().flatten().filter_map(|(_, proof)| match proof {
            Proof::Lost { since, .. } => Some(*since),
            Proof::Proved { .. } | Proof::Unknown(_) => None,
        });
        // What has no way cannot answer.
        let since = match (seen.waits, lost.min()) {
            (Some(since), _) => since,
            (None, Some(since)) if has_way(states) => since,
            (None, _) if is_proved => return Standing::Proved,
            (None, _) => return Standing::Unknown,
        };
        let age = |since: SystemTime| facts.now.duration_since(since).unwrap_or_default();
        if !seen.is_ready {
            Standing::NotReady
        } else if !seen.has_answered && age(seen.came) < facts.patience * NEW {
            Standing::New
        } else if age(since.max(seen.ready)) < facts.patience {
            Standing::Restarting
        } else if seen.waits.is_some() {
            Standing::Waits
        } else {
            Standing::Lost { is_whole: !is_proved }
        }
    }
}

/// A creation time that cannot be read is long ago.
fn created(peer: &Peer) -> SystemTime {
    humantime::parse_rfc3339(&peer.created).unwrap_or(SystemTime::UNIX_EPOCH)
}

//! The daemon's word: whether the pods of this node can talk, and the reasons. Pure.
//!
//! - [`Code`] is the table of reasons, with the word and the remedy of each. README.md has a row for each one.
//! - [`look`] finds the reasons in what the daemon knows, and [`judge`] chooses the word.
//! - [`Book`] is what the daemon remembers of the other nodes, and how each one stands.
//! - [`Told`] turns changes into events.

mod facts;
mod peers;
mod reason;
#[cfg(test)]
mod tests;
mod told;

use std::collections::BTreeSet;
use std::fmt;

pub use facts::{Conflist, Facts, Verdict, look};
pub use peers::{Book, Standing};
pub use reason::{Code, Reason};
pub use told::Told;

/// What the daemon says of its node. `/readyz`, `status`, the metrics and the events follow it. The worst reason decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// The pods of this node can talk.
    Ready,
    /// The pods of named nodes, or a named part of the traffic, are not reached.
    Degraded,
    /// New: nothing is proved yet.
    #[default]
    Waiting,
    /// The pods of this node do not work.
    NotReady,
}

impl Word {
    /// All words.
    pub const ALL: [Word; 4] = [Word::Ready, Word::Degraded, Word::Waiting, Word::NotReady];

    /// Whether `/readyz` is 200.
    pub fn serves(self) -> bool {
        self <= Word::Degraded
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Word::Ready => "ready",
            Word::Degraded => "degraded",
            Word::Waiting => "waiting",
            Word::NotReady => "not ready",
        })
    }
}

/// The word for these reasons.
pub fn judge(reasons: &BTreeSet<Reason>) -> Word {
    reasons.iter().map(|reason| reason.code.word()).max().unwrap_or(Word::Ready)
}

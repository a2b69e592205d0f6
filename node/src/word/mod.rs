//! The daemon's word: whether the pods of this node can talk, and the reasons. Pure.

mod reason;

use std::collections::BTreeSet;

pub use reason::{Code, Reason};

/// What the daemon says of its node. `/readyz`, `status`, the metrics and the events follow it. The worst reason decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// The pods of this node can talk.
    Ready,
    /// The pods of named nodes, or a named part of the traffic, are not reached.
    Degraded,
    /// New: nothing is proved yet.
    Waiting,
    /// The pods of this node do not work.
    NotReady,
}

/// The word for these reasons.
pub fn judge(reasons: &BTreeSet<Reason>) -> Word {
    reasons.iter().map(|reason| reason.code.word()).max().unwrap_or(Word::Ready)
}

//! The daemon's word: whether the pods of this node can talk, and the reasons. Pure.
//!
//! - [`Code`] is the table of reasons, with the word and the remedy of each. README.md has a row for each one.
//! - [`look`] finds the reasons in what the daemon knows, and [`judge`] chooses the word.
//! - [`Book`] is what the daemon remembers of the other nodes, and how each one stands.
//! - [`Told`] turns changes into events.

mod facts;
mod peers;
#[cfg(test)]
mod tests;
mod told;

use std::collections::BTreeSet;

pub use facts::{Conflist, Facts, Verdict, look};
pub use peers::{Book, Standing};
pub use told::Told;

pub use crate::reason::{Code, Reason, Word};

/// The word for these reasons.
pub fn judge(reasons: &BTreeSet<Reason>) -> Word {
    reasons.iter().map(|reason| reason.code.word()).max().unwrap_or(Word::Ready)
}

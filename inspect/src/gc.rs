//! `ferrule gc`: removes the leaks.

use crate::alive::State;
use crate::model::Sockets;
use crate::node::{Leak, Node};

/// What became of a leak.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is removed.
    Removed,
    /// It was gone already.
    Gone,
    /// Its owner is not dead any more, for this reason.
    Kept(String),
    /// The plugin's error.
    Failed(String),
}

/// Removes a leak by its plugin's code. The plugin asks under its lock, or at the generation of the ruleset, whether the owner
/// is still dead, and gets an answer from evidence that is read again.
pub fn remove(node: &mut Node, sockets: &mut Sockets, leak: &Leak) -> Outcome {
    let Some(removal) = node.objects.get_mut(leak.object).and_then(|object| object.removal.take()) else {
        return Outcome::Gone;
    };
    let mut kept = None;
    let outcome = removal.run(sockets, &mut || match node.state_now(leak.object) {
        State::Dead(_) => true,
        State::Alive(why) | State::Unknown(why) => {
            kept = Some(why);
            false
        }
    });
    match (outcome, kept) {
        (Err(error), _) => Outcome::Failed(error.to_string()),
        (Ok(true), _) => Outcome::Removed,
        (Ok(false), Some(why)) => Outcome::Kept(why),
        (Ok(false), None) => Outcome::Gone,
    }
}

//! The daemon's status: `status.json`, and `ferrule-node status`.

mod file;
mod print;

pub use file::{Api, Conflist, Network, Node, PENDING, Proof, Reason, Status, Way, lock, read, runs, write};
pub use print::print;

//! The daemon's status: `status.json`, and `ferrule-node status`.

mod file;
mod health;
mod print;

pub use file::{
    Api, Conflist, Network, Node, PENDING, Proof, Reason, Source, Status, Way, lock, read, runs, write,
};
pub use health::Health;
pub use print::print;

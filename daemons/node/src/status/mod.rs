//! The daemon's status: `status.json`, and `ferrule-node status`.

mod file;
mod health;
mod policy;
mod print;

pub use file::{Api, Conflist, Network, Node, PENDING, Reason, Source, Status, Way, lock, read, runs, write};
pub use health::{Health, Row};
pub use policy::Policy;
pub use print::print;

//! What the plugin `policy` and `ferrule-node` share about pods whose network policies are not decided yet.
//!
//! - [`isolated`]: the file that says in which directions the pods of a namespace may be isolated. The daemon writes it, ADD reads it.
//! - [`table`]: the table with the addresses of undecided pods. ADD adds them, the daemon releases them.
//! - [`comment`]: the pod in the comment of an element.
//! - [`denials`]: what policies deny, as the daemon's table counts and notes it.
//!
//! And what `ferrule` and `ferrule-node` share, for the question why a packet passes or not:
//!
//! - [`decided`]: the names in the table of decided pods, which the daemon makes.
//! - [`walk`]: walks a packet through rules, as the kernel does. [`in_kernel`] reads these, [`ruled`] is the answer.
//! - [`ask`]: the question to the daemon, which knows the objects of the API, and its answer.

#![deny(missing_docs)]

pub mod ask;
pub mod comment;
pub mod decided;
pub mod denials;
pub mod in_kernel;
pub mod isolated;
pub mod ruled;
pub mod table;
pub mod walk;

pub use ferrule_kubelet::Pod;
use serde::{Deserialize, Serialize};

/// The direction of a connection, as the pod sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To the pod.
    Ingress,
    /// From the pod.
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Ingress, Direction::Egress];
}

/// The directions in which a pod is isolated, or may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directions {
    /// Isolated for packets to it.
    pub ingress: bool,
    /// Isolated for packets that it sends.
    pub egress: bool,
}

impl Directions {
    /// Both.
    pub const BOTH: Directions = Directions { ingress: true, egress: true };

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self == Directions::default()
    }

    /// Whether the direction is one of them.
    pub fn has(self, direction: Direction) -> bool {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }

    /// The directions of either.
    #[must_use]
    pub fn or(self, other: Directions) -> Directions {
        Directions { ingress: self.ingress || other.ingress, egress: self.egress || other.egress }
    }
}

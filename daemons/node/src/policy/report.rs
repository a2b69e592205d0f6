//! What the thread says of itself.

use std::time::SystemTime;

/// The state of the policies on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Why policies do not hold, or are not current; empty if all is well.
    pub reasons: Vec<String>,
    /// Why watches of the API server do not work: what is known holds.
    pub away: Vec<String>,
    /// The policies.
    pub policies: usize,
    /// What in them is not understood: the first ones.
    pub faults: Vec<String>,
    /// The addresses of this node's pods that are isolated in a direction.
    pub isolated: usize,
    /// The pods for which nothing is decided, as UID NAMESPACE/NAME: the first ones.
    pub undecided: Vec<String>,
    /// How many of them there are.
    pub waiting: usize,
    /// When the oldest of them was announced.
    pub oldest: Option<SystemTime>,
    /// The kernel lets others change the table: before Linux 6.9.
    pub is_plain: bool,
}

impl Report {
    /// The most faults and undecided pods that are listed.
    pub const FAULTS: usize = 20;
}

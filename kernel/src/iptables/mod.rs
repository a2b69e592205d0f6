//! The tables of both variants of `iptables`.
//!
//! iptables-nft stores its rules in nf_tables, where [`kernel`] reads and deletes them without starting a
//! process. Only the iptables programs can read the tables of iptables-legacy, see [`legacy`]. New rules are
//! always added with the programs ([`Programs::restore`]), so that the programs understand every rule of
//! their tables.

pub mod kernel;
pub mod legacy;
mod listing;
mod own_chain;
mod program;
mod rule;

/// The table for address translation.
pub const NAT: &str = "nat";
/// The table for filtering.
pub const FILTER: &str = "filter";

pub use listing::Listing;
pub use own_chain::OwnChain;
pub use program::{Programs, Variant, is_conflict};
pub use rule::Rule;

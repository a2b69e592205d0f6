//! The nat table of `iptables`, of both its variants.
//!
//! What iptables-nft keeps is in nf_tables, where [`kernel`] reads and deletes it without a process. The other variant's
//! tables only the programs can read, see [`legacy`]. Rules are written by [`Programs::restore`], so that there is nothing in
//! a table that its owner does not understand.

pub mod kernel;
pub mod legacy;
mod listing;
mod program;
mod rule;

pub use listing::Listing;
pub use program::{Programs, Variant};
pub use rule::Rule;

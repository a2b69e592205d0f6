//! Blocks of addresses that the nodes of a cluster claim from each other. The plugin `shared` and the daemon `ferrule-node blocks` have
//! this in common. All of it is pure.
//!
//! - [`block`] is a fixed, aligned part of the address space, and its name.
//! - [`range`] has the ranges of a network, and what all nodes must agree on.
//! - [`ledger`] has a node's blocks, and each step of the protocol. The tests explore its model.
//! - [`plan`] decides which block to claim, to close, and to give back.
//! - [`wire`] is what plugin and daemon say to each other.

#![deny(missing_docs)]

pub mod block;
pub mod ledger;
pub mod plan;
pub mod range;
mod text;
pub mod wire;

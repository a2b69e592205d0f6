//! What it takes to try CNI plugins as black boxes: a [`runner`] that calls a network's plugins the way libcni does,
//! and [`fixture`]s, private nodes and pods to call them in.
//!
//! Nothing here knows how a plugin is made; any folder of plugins will do.
#![deny(missing_docs)]

pub mod fixture;
pub mod runner;

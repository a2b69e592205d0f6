//! What it takes to try CNI plugins as black boxes: a [`runner`] that calls a network's plugins the way libcni does,
//! [`fixture`]s, private nodes and pods to call them in, and on these the [`suite`] that judges a folder of plugins.
//!
//! Nothing here knows how a plugin is made; any folder of plugins will do.
#![deny(missing_docs)]

pub mod fixture;
pub mod runner;
pub mod suite;

//! Tests CNI plugins as black boxes. The [`runner`] calls a network's plugins as libcni does, the
//! [`fixture`]s are private nodes and pods to call them in, and the [`suite`] uses both to judge a folder of
//! plugins.
//!
//! Nothing here depends on how a plugin is implemented; any folder of plugins will do.
#![deny(missing_docs)]

pub mod fixture;
pub mod runner;
pub mod suite;

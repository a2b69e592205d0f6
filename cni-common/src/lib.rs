#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! - [`spec`]: the types of the CNI specification. No system calls.
//! - [`plugin`]: turns a [`plugin::Plugin`] into a program. Its documentation shows a
//!   complete plugin.
//! - [`call_log`]: a line for each call, if the administrator wants one.
//! - [`captured`]: starts a program with its input and output in memory.
//! - [`mod@line`]: foreign text, safe to print.
//! - [`netns`]: opens and identifies network namespaces.

#![deny(missing_docs)]

pub mod captured;
pub mod line;
pub mod netns;
pub mod plugin;
pub mod spec;

pub use plugin::call_log;

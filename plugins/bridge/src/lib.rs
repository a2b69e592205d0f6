//! The `bridge` CNI plugin.

#![deny(missing_docs)]

pub mod masquerade;

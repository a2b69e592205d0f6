//! CNI.

pub mod spec;

//! The `bridge` CNI plugin.

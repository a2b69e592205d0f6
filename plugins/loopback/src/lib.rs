//! The `loopback` CNI plugin.

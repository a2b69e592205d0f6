//! Three nodes on one LAN share a network: the real plugin and daemon, and a fake API server. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fenced;
mod import;
mod lab;
mod manifest;
mod restarts;
mod rules;
mod visible;
mod wire;

//! Shared helpers of the bridge tests: a node with the plugins, a stub IPAM plugin that records its calls,
//! and readers of kernel state.

// Every test binary compiles all of these helpers and uses only some.
#![allow(dead_code, unused_imports)]

mod config;
mod kernel;
mod lab;
mod shape;
mod stub;

pub(crate) use config::{config, host_local, overlay, with_prev};
pub(crate) use kernel::{addresses, flags, link, mac, ports, routes, sysctl, try_link};
pub(crate) use lab::{
    Failure, SHARED, TestContext, assert_only_shared_changed, assert_unchanged, wait_for_dad,
};
pub(crate) use shape::assert_layout;
pub(crate) use stub::Stub;

/// All versions of the specification, oldest first.
pub(crate) const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Whether results of this version have `ip4` and `ip6` and no interfaces.
pub(crate) fn is_per_family(version: &str) -> bool {
    version < "0.3.0"
}

/// Whether this version has the verb CHECK.
pub(crate) fn has_check(version: &str) -> bool {
    version >= "0.4.0"
}

//! What the tests of the bridge have in common: a node with the plugin on it, an IPAM plugin that notes its calls, and
//! questions to the kernel.

// Every test binary compiles all of this and uses its own part.
#![allow(dead_code, unused_imports)]

mod config;
mod kernel;
mod lab;
mod shape;
mod stub;

pub(crate) use config::{config, host_local, overlay, with_prev};
pub(crate) use kernel::{addresses, flags, link, mac, ports, routes, sysctl, try_link};
pub(crate) use lab::{Lab, Refusal, SHARED, after, settled, unchanged};
pub(crate) use shape::assert_shape;
pub(crate) use stub::Stub;

/// Every version of the specification.
pub(crate) const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Whether results of this version are by address family and know no interfaces.
pub(crate) fn is_per_family(version: &str) -> bool {
    version < "0.3.0"
}

/// Whether this version has CHECK.
pub(crate) fn has_check(version: &str) -> bool {
    version >= "0.4.0"
}

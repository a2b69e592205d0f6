//! This node's links, addresses and routes, and how they change.

mod local;
mod lookup;
mod watch;

use ipnetwork::IpNetwork;

pub use local::{Link, Local, Route, is_link_local};
pub use lookup::{Lookup, Reach};
pub use watch::Watch;

/// The bridge of the built-in conflist.
pub const BRIDGE: &str = "ferrule0";

/// The number that marks our routes. No program of Linux distributions has it.
pub use ferrule_kit::cluster::ROUTE_PROTOCOL as PROTOCOL;

/// The metric that the kernel gives an IPv6 route without one.
const IPV6_METRIC: u32 = 1024;

/// The metric of our route to a podCIDR, as the kernel describes it: the lowest one for IPv4.
pub fn metric(dst: IpNetwork) -> u32 {
    if dst.is_ipv6() { IPV6_METRIC } else { 0 }
}

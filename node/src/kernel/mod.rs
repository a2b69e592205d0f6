//! This node's links, addresses and routes, and how they change.

mod local;
mod lookup;
mod watch;

pub use local::{Link, Local, Route, is_link_local};
pub use lookup::{Lookup, Reach};
pub use watch::Watch;

/// The bridge of the built-in conflist.
pub const BRIDGE: &str = "ferrule0";

/// The number that marks our routes. No program of Linux distributions has it.
pub use ferrule_kit::cluster::ROUTE_PROTOCOL as PROTOCOL;

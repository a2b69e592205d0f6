//! What `ferrule-node` leaves on the node for others to see. It is a program of its own, which nothing here links.

/// The protocol of its routes, as `ip route` shows it.
pub const ROUTE_PROTOCOL: u8 = 79;
/// The key of the conflist that it writes.
pub const CONFLIST_MARK: &str = "ferruleNode";
/// The folder of its status file and of its lock.
pub const STATE: &str = "/run/ferrule/node";
/// In that folder: what it knows.
pub const STATUS_FILE: &str = "status.json";
/// In that folder: locked while it runs.
pub const LOCK_FILE: &str = "lock";

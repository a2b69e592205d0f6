//! The marks and files of `ferrule-node` that other programs look for. Nothing here links that program.

/// The protocol of its routes, as `ip route` shows it.
pub const ROUTE_PROTOCOL: u8 = 79;
/// The key of the conflist that it writes.
pub const CONFLIST_MARK: &str = "ferruleNode";
/// The folder of its status file and of its lock.
pub const STATE: &str = "/run/ferrule/node";
/// The status file in [`STATE`].
pub const STATUS_FILE: &str = "status.json";
/// The file in [`STATE`] that it locks while it runs.
pub const LOCK_FILE: &str = "lock";

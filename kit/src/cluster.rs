//! The marks and files of `ferrule-node` that other programs look for. Nothing here links that program.

use std::fs;
use std::path::{Path, PathBuf};

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

/// The files of a folder of network configurations that runtimes read, in their order: they take the first one.
pub fn configurations(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_read = |path: &PathBuf| {
        let has_ending = path
            .extension()
            .is_some_and(|ending| ["conf", "conflist", "json"].iter().any(|known| ending == *known));
        has_ending && !path.is_dir()
    };
    let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).filter(is_read).collect();
    files.sort();
    files
}

//! One instance of a daemon at a time: while one replaces another, both run.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use ferrule_kernel::file;
use tokio::time::sleep;

/// How often to look whether the other instance has ended.
const LOOK: Duration = Duration::from_millis(500);

/// Waits until no other process has the lock on the file, which is made if needed. This process has it as long as the file is open.
/// `waits` goes to the log if it has to wait.
///
/// # Errors
/// The file cannot be made or locked.
pub async fn alone(path: &Path, waits: &str) -> io::Result<File> {
    let mut is_told = false;
    loop {
        if let Some(lock) = file::try_lock(path, 0o644)? {
            return Ok(lock);
        }
        if !std::mem::replace(&mut is_told, true) {
            crate::log!("{waits}");
        }
        sleep(LOOK).await;
    }
}

//! While one instance of the daemon replaces another, both run and prepare claims. Only the leader publishes, reports and serves device
//! plugins.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use ferrule_daemon::alone;
use tokio::time::sleep;

/// The pause after the file could not be locked.
const PAUSE: Duration = Duration::from_secs(2);

/// Waits until this process has the lock in the driver's folder. It leads as long as the file is open.
pub async fn lead(folder: &Path) -> File {
    let mut is_told = false;
    loop {
        // A failure shows when the lock is taken.
        let _ = fs::create_dir_all(folder);
        let waits = "another instance leads: waits until it ends, and prepares claims meanwhile";
        match alone(&folder.join("lock"), waits).await {
            Ok(lock) => return lock,
            Err(error) if !is_told => log!("cannot lock {error}"),
            Err(_) => {}
        }
        is_told = true;
        sleep(PAUSE).await;
    }
}

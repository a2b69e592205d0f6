//! While one instance of the daemon replaces another, both run and prepare claims. Only the leader publishes, reports and serves device
//! plugins.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use ferrule_kernel::file;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The pause after the file could not be locked.
const PAUSE: Duration = Duration::from_secs(2);

/// Waits until this process has the lock in the driver's folder. It leads as long as the file is open.
pub async fn lead(folder: &Path) -> File {
    let path = folder.join("lock");
    let mut reported = false;
    loop {
        match lock(&path).await {
            Ok(lock) => return lock,
            Err(error) if !reported => log!("cannot lock {}: {error}", path.display()),
            Err(_) => {}
        }
        reported = true;
        sleep(PAUSE).await;
    }
}

async fn lock(path: &Path) -> io::Result<File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let file = file::open_lock(path, 0o644)?;
    if file.try_lock().is_ok() {
        return Ok(file);
    }
    log!("another instance leads: waits until it ends, and prepares claims meanwhile");
    spawn_blocking(move || file.lock().map(|()| file)).await?
}

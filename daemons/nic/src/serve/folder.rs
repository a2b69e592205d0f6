//! Says when something changes in the kubelet's folder, which may be missing at first and may be replaced.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::AddWatchFlags;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The pause after inotify has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How often to look without an event: another folder may have been mounted over this one.
const REFRESH: Duration = Duration::from_secs(30);

/// Starts to watch a folder. The number counts the changes; it may count one twice.
pub fn watch_folder(folder: PathBuf) -> watch::Receiver<u64> {
    let (changes, receiver) = watch::channel(0);
    tokio::spawn(async move {
        while !changes.is_closed() {
            match nearest(&folder) {
                Ok(watch) => {
                    // What has changed before the watch began.
                    changes.send_modify(|count| *count += 1);
                    tokio::select! {
                        _ = timeout(REFRESH, watch.readable()) => {}
                        () = changes.closed() => {}
                    }
                }
                Err(error) => {
                    log!("cannot watch {}: {error}", folder.display());
                    sleep(PAUSE).await;
                }
            }
        }
    });
    receiver
}

/// Watches the folder, or as long as it is missing the nearest folder above it. The descriptor is readable after the first event.
fn nearest(folder: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let events = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF;
    let find = || folder.ancestors().find(|path| path.exists()).ok_or(io::ErrorKind::NotFound);
    loop {
        let watched = find()?;
        let watch = ferrule_daemon::watch(watched, events)?;
        // Nothing has appeared below it before the watch began.
        if find()? == watched {
            return Ok(watch);
        }
    }
}

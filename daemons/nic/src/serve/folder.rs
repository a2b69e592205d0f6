//! Says when something changes in the kubelet's folder, which may be missing at first and may be replaced.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
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
            match watch(&folder) {
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
fn watch(folder: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF;
    let queue = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let nearest = || folder.ancestors().find(|path| path.exists());
    loop {
        let watched = nearest().ok_or(io::ErrorKind::NotFound)?;
        queue.add_watch(watched, flags)?;
        // Nothing has appeared below it before the watch began.
        if nearest() == Some(watched) {
            break;
        }
    }
    #[expect(
        deprecated,
        reason = "its successor is unsafe; an OwnedFd keeps its descriptor, which is all that this demands"
    )]
    AsyncFd::new(queue.into())
}

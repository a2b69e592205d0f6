//! Tells of each change in the kubelet's folder, which may be missing at first and may be replaced.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::sleep;

/// The pause after inotify has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How often to look without a notice: another folder may have been mounted over this one.
const REFRESH: Duration = Duration::from_secs(30);

struct Queue(Inotify);

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Starts to watch a folder. The number counts the changes; it may count one twice.
pub fn watch_folder(folder: PathBuf) -> watch::Receiver<u64> {
    let (changes, receiver) = watch::channel(0);
    tokio::spawn(async move {
        while !changes.is_closed() {
            if let Err(error) = watch(&folder, &changes).await {
                log!("cannot watch {}: {error}", folder.display());
                sleep(PAUSE).await;
            }
            changes.send_modify(|count| *count += 1);
        }
    });
    receiver
}

/// Watches the folder until it is gone or [`REFRESH`] is over, or as long as it is missing the nearest folder above it.
async fn watch(folder: &Path, changes: &watch::Sender<u64>) -> io::Result<()> {
    let flags = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF;
    let queue = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let is_above = match queue.add_watch(folder, flags) {
        Ok(_) => false,
        Err(Errno::ENOENT) => {
            let is_watched = |path: &Path| queue.add_watch(path, flags).is_ok();
            if !folder.ancestors().skip(1).any(is_watched) {
                return Err(io::ErrorKind::NotFound.into());
            }
            if folder.exists() {
                return Ok(());
            }
            true
        }
        Err(error) => return Err(error.into()),
    };
    changes.send_modify(|count| *count += 1);
    #[expect(
        deprecated,
        reason = "its successor is unsafe; Queue keeps its descriptor, which is all that this demands"
    )]
    let queue = AsyncFd::new(Queue(queue))?;
    let mut refresh = pin!(sleep(REFRESH));
    loop {
        let mut ready = tokio::select! {
            ready = queue.readable() => ready?,
            () = changes.closed() => return Ok(()),
            () = &mut refresh => return Ok(()),
        };
        let events = match ready.get_inner().0.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN) => {
                ready.clear_ready();
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        changes.send_modify(|count| *count += 1);
        let end = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_IGNORED;
        if is_above || events.iter().any(|event| event.mask.intersects(end)) {
            return Ok(());
        }
    }
}

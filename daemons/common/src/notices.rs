//! The kernel's notices of changes of files.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// A descriptor that is readable after the first of these events at the file or folder. Needs a tokio runtime.
///
/// # Errors
/// There is nothing with this path, or this user has too many descriptors.
pub fn watch(path: &Path, events: AddWatchFlags) -> io::Result<AsyncFd<OwnedFd>> {
    let queue = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    queue.add_watch(path, events)?;
    #[expect(
        deprecated,
        reason = "its successor is unsafe; an OwnedFd keeps its descriptor, which is all that this demands"
    )]
    AsyncFd::new(queue.into())
}

//! Runs code in another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::sched::{CloneFlags, setns};

/// The network namespace of the calling thread; `/proc/self` would be that of the main thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// Runs `work` with the calling thread in the network namespace `netns`, then returns the thread to its own.
///
/// Sockets that `work` opens belong to this namespace permanently. `/proc/sys/net` shows this namespace while
/// `work` runs.
///
/// # Errors
/// The thread cannot enter the namespace; `work` has not run.
///
/// # Panics
/// If the thread cannot return to its own namespace: it would apply changes for the host to the container.
#[allow(clippy::expect_used)]
pub fn enter<T>(netns: impl AsFd, work: impl FnOnce() -> T) -> io::Result<T> {
    let own_netns = own()?;
    setns(netns, CloneFlags::CLONE_NEWNET)?;
    let outcome = work();
    setns(&own_netns, CloneFlags::CLONE_NEWNET).expect("return from the container's network namespace");
    Ok(outcome)
}

/// The network namespace of the calling thread.
pub fn own() -> io::Result<File> {
    File::open(OWN)
}

/// The number of a namespace's file descriptor, for netlink attributes such as `IFLA_NET_NS_FD`.
pub(crate) fn number(netns: BorrowedFd<'_>) -> u32 {
    // The descriptor of an open file is never negative.
    netns.as_raw_fd().unsigned_abs()
}

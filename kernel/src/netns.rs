//! Runs code in another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::time::Duration;

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
/// If `work` panics; the thread is in its own namespace then. If the thread cannot return to its own namespace after 100
/// attempts: it would apply changes for the host to the container. A panic of `work` in such a thread aborts the process.
pub fn enter<T>(netns: impl AsFd, work: impl FnOnce() -> T) -> io::Result<T> {
    let own_netns = own()?;
    setns(netns, CloneFlags::CLONE_NEWNET)?;
    let own_netns = Return(own_netns);
    let outcome = work();
    drop(own_netns);
    Ok(outcome)
}

/// Attempts to return. The kernel needs memory for it, and may lack it for a moment.
const TRIES: u32 = 100;

/// Moves the thread back to its own namespace when it is dropped.
struct Return(File);

impl Drop for Return {
    fn drop(&mut self) {
        let returned = (1..=TRIES).any(|_| {
            setns(&self.0, CloneFlags::CLONE_NEWNET).is_ok() || {
                std::thread::sleep(Duration::from_millis(1));
                false
            }
        });
        // A panic while another one unwinds aborts.
        assert!(returned, "the thread cannot return from the container's network namespace");
    }
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use cni_lab::testing::isolated;
    use nix::sched::unshare;

    use super::*;

    #[test]
    fn a_panic_does_not_leave_the_thread_in_the_container() {
        isolated(|| {
            let container = own().unwrap();
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let inode = || nix::sys::stat::fstat(own().unwrap()).unwrap().st_ino;
            let node = inode();
            let entered = catch_unwind(AssertUnwindSafe(|| enter(&container, || assert_eq!(inode(), node))));
            assert!(entered.is_err(), "the work was not in the container");
            assert_eq!(inode(), node);
        });
    }
}

//! Network namespaces: open, verify, enter.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{FsType, NSFS_MAGIC, PROC_SUPER_MAGIC, statfs};
use thiserror::Error;

use crate::spec::{CniError, Step};

/// The calling thread's own namespace; `/proc/self` would be the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";

/// Why a path could not be opened as a namespace. The texts are the reference's.
#[derive(Debug, Error)]
pub enum NetnsError {
    /// There is nothing at the path.
    #[error("failed to Statfs {0:?}: no such file or directory")]
    NotFound(String),
    /// There is something, but no namespace: such as the file that an unmount leaves behind.
    #[error("unknown FS magic on {0:?}")]
    NotANamespace(String),
    /// Anything else.
    #[error("failed to open {path:?}: {source}")]
    Other {
        /// The path.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// An open network namespace.
#[derive(Debug)]
pub struct Netns(File);

impl Netns {
    /// Opens the namespace at `path`: a bind mount of one, or `/proc/PID/ns/net`.
    ///
    /// The file system is looked at first, since opening, say, a FIFO would block.
    ///
    /// # Errors
    /// [`NetnsError`]; the caller decides what a namespace that is gone means.
    pub fn open(path: &str) -> Result<Self, NetnsError> {
        let other = |source: io::Error| NetnsError::Other { path: path.to_owned(), source };
        let magic: FsType = match statfs(path) {
            Ok(stat) => stat.filesystem_type(),
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Err(NetnsError::NotFound(path.to_owned())),
            Err(errno) => return Err(other(errno.into())),
        };
        if magic != NSFS_MAGIC && magic != PROC_SUPER_MAGIC {
            return Err(NetnsError::NotANamespace(path.to_owned()));
        }
        let file = File::options().read(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(path);
        match file {
            Ok(file) => Ok(Netns(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(NetnsError::NotFound(path.to_owned()))
            }
            Err(error) => Err(other(error)),
        }
    }

    /// Whether it is the namespace with this device and inode number.
    pub fn is(&self, identity: (u64, u64)) -> bool {
        self.0.metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == identity)
    }

    /// The descriptor's number, for a netlink message that names a namespace by it (`IFLA_NET_NS_FD`).
    pub fn raw_fd(&self) -> u32 {
        // An open descriptor is never negative.
        self.0.as_raw_fd().unsigned_abs()
    }

    /// Runs `work` with the calling thread in this namespace, and brings the thread home again.
    ///
    /// Sockets that `work` opens stay in this namespace for good, and `/proc/sys/net` is this namespace's meanwhile.
    ///
    /// # Errors
    /// Those of `work`, and code 999 if the namespace cannot be entered.
    ///
    /// # Panics
    /// If the thread cannot return: going on in the wrong namespace would do to the container what is meant for the host.
    #[allow(clippy::expect_used)]
    pub fn enter<T>(&self, work: impl FnOnce() -> Result<T, CniError>) -> Result<T, CniError> {
        let home = File::open(OWN).step(|| "open the plugin's own network namespace")?;
        setns(&self.0, CloneFlags::CLONE_NEWNET).step(|| "enter the container's network namespace")?;
        let outcome = work();
        setns(&home, CloneFlags::CLONE_NEWNET).expect("return from the container's network namespace");
        outcome
    }
}

/// Whether the namespace is the one that the calling thread is in.
///
/// # Errors
/// What the kernel said when the thread's own could not be looked at.
pub fn is_own(netns: &Netns) -> io::Result<bool> {
    let own = fs::metadata(OWN)?;
    Ok(netns.is((own.dev(), own.ino())))
}

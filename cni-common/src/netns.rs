//! Network namespaces: open and identify.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::statfs::{FsType, NSFS_MAGIC, PROC_SUPER_MAGIC, statfs};
use rustix::fs::{Mode, OFlags, open};
use thiserror::Error;

use crate::spec::{CniError, Code};

/// The network namespace of the calling thread; `/proc/self` would be that of the main thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// Why a path could not be opened as a network namespace. The texts are the reference's.
#[derive(Debug, Error)]
#[error("{text}")]
pub struct NetnsError {
    /// Whether the path leads to no namespace: it does not exist, or is something else. For example, an unmount leaves a
    /// regular file behind.
    pub is_absent: bool,
    text: String,
}

/// An open network namespace. A clone is the same descriptor.
#[derive(Clone, Debug)]
pub struct Netns(Arc<File>);

impl Netns {
    /// Opens the network namespace at `path`: a bind mount of one, or `/proc/PID/ns/net`.
    ///
    /// Checks the file system type before opening, because opening a FIFO, for example, would block.
    ///
    /// # Errors
    /// [`NetnsError`]; the caller decides whether a missing namespace is a failure.
    pub fn open(path: &str) -> Result<Self, NetnsError> {
        let error = |is_absent, text| NetnsError { is_absent, text };
        let not_found = || error(true, format!("failed to Statfs {path:?}: no such file or directory"));
        let failed = |why: io::Error| error(false, format!("failed to open {path:?}: {why}"));
        let magic: FsType = match statfs(path) {
            Ok(stat) => stat.filesystem_type(),
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Err(not_found()),
            Err(errno) => return Err(failed(errno.into())),
        };
        if magic != NSFS_MAGIC && magic != PROC_SUPER_MAGIC {
            return Err(error(true, format!("unknown FS magic on {path:?}")));
        }
        // rustix sets close-on-exec in the same call. File::open in musl makes a second one.
        match open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Ok(Netns(Arc::new(file.into()))),
            Err(rustix::io::Errno::NOENT) => Err(not_found()),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// The namespace's device and inode numbers. No other namespace has these while this one exists.
    ///
    /// # Errors
    /// The kernel does not tell them.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        self.0.metadata().map(|meta| (meta.dev(), meta.ino()))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The state of a container's network namespace at DEL.
#[derive(Debug)]
pub enum ContainerNetns {
    /// It exists.
    Open(Netns),
    /// It does not exist any more, with all its links.
    Gone,
    /// It may exist: its path could not be opened. What a later DEL needs must stay.
    Unknown(CniError),
}

impl ContainerNetns {
    /// Opens the network namespace at `path`. An empty path leads to none.
    pub fn open(path: &str) -> ContainerNetns {
        if path.is_empty() {
            return ContainerNetns::Gone;
        }
        match Netns::open(path) {
            Ok(netns) => ContainerNetns::Open(netns),
            Err(error) if error.is_absent => ContainerNetns::Gone,
            Err(error) => {
                ContainerNetns::Unknown(CniError::internal(format!("failed to open netns {path:?}: {error}")))
            }
        }
    }

    /// [`ContainerNetns::open`] for a container with a namespace of its own. If the path leads to the plugin's namespace now, the
    /// container's is gone; the second value says so.
    pub fn open_other(path: &str) -> (ContainerNetns, bool) {
        let found = ContainerNetns::open(path);
        let ContainerNetns::Open(netns) = &found else { return (found, false) };
        match is_own(netns) {
            Ok(false) => (found, false),
            Ok(true) => (ContainerNetns::Gone, true),
            Err(error) => (ContainerNetns::Unknown(error), false),
        }
    }

    /// The namespace, for a step inside of it. Code that removes something from the host must tell the other two apart.
    pub fn opened(&self) -> Option<&Netns> {
        if let ContainerNetns::Open(netns) = self { Some(netns) } else { None }
    }
}

/// Whether `netns` is the namespace of the calling thread.
///
/// # Errors
/// Code 8: the numbers of a namespace cannot be read.
pub fn is_own(netns: &Netns) -> Result<bool, CniError> {
    let same = fs::metadata(OWN).and_then(|own| Ok(netns.identity()? == (own.dev(), own.ino())));
    same.map_err(|error| CniError::new(Code::InvalidNetns, format!("get plugin's netns failed: {error}")))
}

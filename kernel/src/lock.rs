//! A lock between processes: flock(2) on a file.
//!
//! The wait is limited to 10 s. Our plugins hold a lock for milliseconds; the reference's host-local holds
//! its lock for a third of a second with 20,000 reservations. Runtimes give up after minutes. A wait of 10 s
//! therefore means that the holder hangs, and the error names its PID.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::{major, minor};

use crate::{limited, observer};

/// Limit of the wait for a lock.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A lock that is held until the value is dropped or the process ends. Child processes do not inherit it.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "closing the file releases the lock")] File);

impl Lock {
    /// Locks the file at `path`. Creates it with permission bits `mode` if it does not exist; its directory
    /// must exist.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after 10 s.
    pub fn take(path: &Path, mode: u32) -> Result<Self, Error> {
        Lock::on(path, open(path, mode))
    }

    /// As [`Lock::take`], for a file that exists, such as a mounted network namespace.
    ///
    /// # Errors
    /// Also if there is no file.
    pub fn take_existing(path: &Path) -> Result<Self, Error> {
        Lock::on(path, File::open(path))
    }

    fn on(path: &Path, file: io::Result<File>) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Io { path: path.to_owned(), source };
        let file = file.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => return Ok(Lock(file)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        let id = id_of(&file);
        let timed_out = || Error::TimedOut { path: path.to_owned(), holder: holder_of(id.as_deref()) };
        wait(file).map_err(failed)?.map(Lock).ok_or_else(timed_out)
    }
}

/// Why a file could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Opening or locking the file failed.
    #[error("failed to lock {path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Another process still holds the lock.
    #[error("{path} has been locked for {seconds} seconds by {holder}", path = .path.display(), seconds = TIMEOUT.as_secs())]
    TimedOut {
        /// The file.
        path: PathBuf,
        /// The process, as far as `/proc/locks` names it.
        holder: String,
    },
}

/// Opens the lock file. Opens it read-only first, so that an existing file on a read-only file system can be
/// locked.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().append(true).create(true).mode(mode).open(path)
        }
        outcome => outcome,
    }
}

/// Waits for the lock. Returns `None` after [`TIMEOUT`].
///
/// flock(2) has no time-out, so a separate thread blocks in it. Polling with `LOCK_NB` would lose the lock to
/// processes that block.
fn wait(file: File) -> io::Result<Option<File>> {
    observer::step("wait for a lock", || limited::within(TIMEOUT, move || file.lock().map(|()| file)))?
        .transpose()
}

/// Names the process that holds the lock on the file with this ID.
fn holder_of(id: Option<&str>) -> String {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    match id.and_then(|id| find_holder(&locks, id)) {
        None => "another process".to_owned(),
        Some(pid) => match fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim_end()),
            Err(_) => format!("process {pid}"),
        },
    }
}

/// The file as `/proc/locks` names it: MAJOR:MINOR:INODE such as `fd:01:1234`.
fn id_of(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (major(meta.dev()), minor(meta.dev()));
    Some(format!("{major:02x}:{minor:02x}:{}", meta.ino()))
}

/// The PID of the process that holds a flock(2) on `file`, given by its ID.
/// Skips waiting processes: their lines have `->` in the second column.
///
/// # References
/// proc_locks(5).
fn find_holder(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, on, ..] if on == file => pid.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_holder_between_waiters_and_other_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fd:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fd:01:78 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 fd:01:77 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 fd:01:77 0 EOF\n";
        assert_eq!(find_holder(locks, "fd:01:77"), Some(13));
        assert_eq!(find_holder(locks, "fd:01:79"), None);
        assert_eq!(find_holder("", "fd:01:77"), None);
    }

    #[test]
    fn the_kernel_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = Lock::take(&path, 0o600).unwrap();
        let holder = holder_of(id_of(&lock.0).as_deref());
        assert!(holder.starts_with(&format!("process {} (", std::process::id())), "{holder}");
        drop(lock);
        Lock::take(&path, 0o600).unwrap();
    }
}

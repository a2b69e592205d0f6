//! A lock between processes: flock(2) on a file.
//!
//! The wait is limited to 10 s. Our plugins hold a lock for milliseconds; the reference's host-local holds
//! its lock for a third of a second with 20,000 reservations. Runtimes give up after minutes. A wait of 10 s
//! therefore means that the holder hangs, and the error names its PID.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::stat::{major, minor};

use crate::spec::{CniError, Code};

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
    /// Code 11 if another process still holds the lock after 10 s; the message names that process if
    /// `/proc/locks` lists it. Code 5 if opening or locking the file fails.
    pub fn take(path: &Path, mode: u32) -> Result<Self, CniError> {
        let failed =
            |error: io::Error| CniError::new(Code::Io, format!("failed to lock {}: {error}", path.display()));
        let file = open(path, mode).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => return Ok(Lock(file)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        let holder = holder_of(&file);
        wait(file).map_err(failed)?.map(Lock).ok_or_else(|| timed_out(path, holder))
    }
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
/// processes that block. After a time-out the thread runs until the process exits.
fn wait(file: File) -> io::Result<Option<File>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let outcome = file.lock().map(|()| file);
        // If the receiver has timed out, the send fails and drops the file, which releases the lock.
        let _ = sender.send(outcome);
    })?;
    receiver.recv_timeout(TIMEOUT).map_or(Ok(None), |outcome| outcome.map(Some))
}

fn timed_out(path: &Path, holder: Option<u32>) -> CniError {
    let path = path.display();
    let seconds = TIMEOUT.as_secs();
    let holder = match holder {
        None => "another process".to_owned(),
        Some(pid) => match fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim_end()),
            Err(_) => format!("process {pid}"),
        },
    };
    CniError::new(Code::TryAgainLater, format!("{path} has been locked for {seconds} seconds by {holder}"))
}

fn holder_of(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (major(meta.dev()), minor(meta.dev()));
    find_holder(&fs::read_to_string("/proc/locks").ok()?, &format!("{major:02x}:{minor:02x}:{}", meta.ino()))
}

/// The PID of the process that holds a flock(2) on `file`, given as MAJOR:MINOR:INODE such as `fd:01:1234`.
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
        assert_eq!(holder_of(&lock.0), Some(std::process::id()));
        drop(lock);
        Lock::take(&path, 0o600).unwrap();
    }
}

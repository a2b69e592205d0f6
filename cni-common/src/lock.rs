//! A lock between processes: flock(2) on a file.
//!
//! The wait for it is bounded. A plugin holds one for milliseconds, the reference's host-local its own for a third of a
//! second where there are 20,000 reservations; callers give up after minutes. So whoever has to wait ten seconds stands
//! behind some that hangs, and hears who that is.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::stat::{major, minor};

use crate::spec::{CniError, Code};

/// How long a command waits for the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// A lock, held until it is dropped or the process ends. Child processes do not hold it.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "closing the file gives the lock back")] File);

impl Lock {
    /// Takes the lock on the file, which is made with that mode if it is not there. Its folder must exist.
    ///
    /// # Errors
    /// Code 11 if somebody else keeps it, naming the process if it is known; code 5 if it cannot be had at all.
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
        wait(file).map_err(failed)?.map(Lock).ok_or_else(|| busy(path, holder))
    }
}

/// Opens the lock file. First without making it: a read-only file system is no obstacle to a lock.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().append(true).create(true).mode(mode).open(path)
        }
        outcome => outcome,
    }
}

/// Queues for the lock in a thread of its own, since flock(2) knows no time-out and who polls always loses against those
/// who queue. `None` when patience ends; the thread then ends with the process.
fn wait(file: File) -> io::Result<Option<File>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let outcome = file.lock().map(|()| file);
        // Nobody listens any more: dropping the file gives the lock back.
        let _ = sender.send(outcome);
    })?;
    receiver.recv_timeout(PATIENCE).map_or(Ok(None), |outcome| outcome.map(Some))
}

fn busy(path: &Path, holder: Option<u32>) -> CniError {
    let path = path.display();
    let seconds = PATIENCE.as_secs();
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

/// The process that holds a flock(2) on the file, a text like `fd:01:1234`. Lines of those who wait have an arrow.
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
    fn holder_is_found_among_waiters_and_other_locks() {
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

//! A log file that processes write at the same time, and its rotation.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, rename, stat};
use rustix::io::{Errno, write};
use rustix::process::{Resource, getrlimit};

/// Appends the line. If the file then has the size `limit` or more, renames it to [`old`] and so replaces an earlier one.
///
/// One write with `O_APPEND` keeps lines of concurrent processes apart. A process that opened the file before the
/// rename writes into the old file. Only the process that holds the lock on the file renames it, and only if the name
/// still leads to it: so a second process does not rename the new file. No process waits for the lock.
///
/// `O_NONBLOCK` is for a FIFO without a reader, whose opening would block. `O_NOFOLLOW` also refuses names of the
/// process's own streams, such as `/dev/stdout`.
///
/// # Errors
/// Those of the system calls. `EFBIG` instead of a write beyond the process's limit of file sizes: the kernel would end
/// the process by a signal. `ENOSPC` if only a part could be written.
pub(super) fn append(path: &Path, limit: u64, line: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
    let file =
        open(path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY, Mode::from_raw_mode(0o640))?;
    let found = fstat(&file)?;
    let size = u64::try_from(found.st_size).unwrap_or(0) + line.len() as u64;
    if getrlimit(Resource::Fsize).current.is_some_and(|most| size > most) {
        return Err(Errno::FBIG.into());
    }
    if write(&file, line)? < line.len() {
        return Err(Errno::NOSPC.into());
    }
    if size < limit || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    if stat(path).is_ok_and(|named| (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino)) {
        rename(path, old(path))?;
    }
    Ok(())
}

/// The name of the old file: `PATH.1`.
pub fn old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn rotates_when_the_size_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for line in ["one\n", "two\n", "three\n"] {
            append(&path, 8, line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(old(&path)).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640 & !umask());
    }

    #[test]
    fn a_link_and_a_fifo_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [link, fifo] = ["link", "fifo"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(append(&link, 8, b"x").is_err());
        assert!(append(&fifo, 8, b"x").is_err());
    }

    fn umask() -> u32 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
        u32::from_str_radix(line.trim(), 8).unwrap()
    }
}

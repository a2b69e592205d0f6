//! A lock between processes: flock(2) on a file, or a lock on one byte of a file.
//!
//! The wait is limited to 10 s. Our plugins hold a lock for milliseconds; the reference's host-local holds
//! its lock for a third of a second with 20,000 reservations. Runtimes give up after minutes. A wait of 10 s
//! therefore means that the process with the lock hangs, and the error names its PID.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_WRLCK, SEEK_SET, c_short, flock};
use nix::sys::stat::{major, minor};

use crate::file::SAFELY;
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
    /// [`ErrorKind::TimedOut`] after 10 s.
    pub fn take(path: &Path, mode: u32) -> io::Result<Self> {
        let file = open(path, mode).map_err(failed(path))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(TryLockError::Error(error)) => Err(failed(path)(error)),
            Err(TryLockError::WouldBlock) => wait(path, file, File::lock),
        }
    }

    /// Locks one byte of the file at `path`, which need not be that long: one file has a lock for each number, and none is
    /// left behind. Creates the file as [`Lock::take`] does.
    ///
    /// # Errors
    /// As [`Lock::take`].
    ///
    /// # References
    /// `F_OFD_SETLK` in fcntl(2).
    pub fn take_byte(path: &Path, mode: u32, byte: u64) -> io::Result<Self> {
        // Such a lock needs a file that is open for writing.
        let file = create(path, mode).map_err(failed(path))?;
        let range = flock {
            l_type: F_WRLCK as c_short,
            l_whence: SEEK_SET as c_short,
            l_start: byte.cast_signed() & i64::MAX,
            l_len: 1,
            l_pid: 0,
        };
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&range)) {
            Ok(_) => return Ok(Lock(file)),
            Err(Errno::EAGAIN | Errno::EACCES) => {}
            Err(errno) => return Err(failed(path)(errno.into())),
        }
        wait(path, file, move |file| Ok(fcntl(file, FcntlArg::F_OFD_SETLKW(&range)).map(drop)?))
    }
}

/// Adds the file to an error.
fn failed(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("failed to lock {}: {error}", path.display()))
}

/// Opens the lock file. Opens it read-only first, so that an existing file on a read-only file system can be
/// locked. Follows no link, and does not wait for the other end of a FIFO.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    match OpenOptions::new().read(true).custom_flags(SAFELY).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => create(path, mode),
        outcome => outcome,
    }
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(mode).custom_flags(SAFELY).open(path)
}

/// Waits for the lock, at most [`TIMEOUT`].
///
/// Neither flock(2) nor fcntl(2) has a time-out, so a separate thread blocks in it. Polling would lose the lock to
/// processes that block.
fn wait(
    path: &Path,
    file: File,
    lock: impl FnOnce(&File) -> io::Result<()> + Send + 'static,
) -> io::Result<Lock> {
    let id = id_of(&file);
    let timed_out = || {
        let process = id.and_then(|id| holder(path, &id)).map_or("another process".to_owned(), named);
        let (path, seconds) = (path.display(), TIMEOUT.as_secs());
        let why = format!("{path} has been locked for {seconds} seconds by {process}");
        io::Error::new(ErrorKind::TimedOut, why)
    };
    let work = move || lock(&file).map(|()| file);
    let outcome = observer::step("wait for a lock", || limited::within(TIMEOUT, work));
    let locked = outcome.and_then(Option::transpose).map_err(failed(path))?;
    locked.map(Lock).ok_or_else(timed_out)
}

/// The PID of the process that holds a lock on the file with this ID, which is there as `path`, or under another path with the same file name.
///
/// Not from `/proc/locks`: while the kernel writes that, no process gets a lock of any file, and after a pile-up all that wait read it at once.
fn holder(path: &Path, id: &str) -> Option<u32> {
    let names =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let processes = names("/proc".into()).map(|name| Path::new("/proc").join(name));
    processes.into_iter().find_map(|process| {
        let mut locked = names(process.join("fd")).filter_map(|fd| {
            let opened = fs::read_link(process.join("fd").join(&fd)).ok()?;
            let is_same = opened.file_name() == path.file_name();
            let info = is_same.then(|| fs::read_to_string(process.join("fdinfo").join(&fd)).ok())??;
            find_pid(&info, id)
        });
        locked.next()
    })
}

fn named(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

/// The file as the kernel names it in its lists of locks: MAJOR:MINOR:INODE such as `fd:01:1234`.
fn id_of(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (major(meta.dev()), minor(meta.dev()));
    Some(format!("{major:02x}:{minor:02x}:{}", meta.ino()))
}

/// The PID of the process that holds a flock(2) on `file`, given by its ID.
///
/// # References
/// `lock` in proc_pid_fdinfo(5). A process that waits has no such line.
fn find_pid(info: &str, file: &str) -> Option<u32> {
    info.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["lock:", _, "FLOCK", _, _, pid, on, ..] if on == file => pid.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn finds_the_process_beside_other_locks() {
        let info = "pos:\t0\nflags:\t0100000\n\
                    lock:\t1: POSIX  ADVISORY  WRITE 11 fd:01:77 0 EOF\n\
                    lock:\t2: FLOCK  ADVISORY  WRITE 13 fd:01:77 0 EOF\n";
        assert_eq!(find_pid(info, "fd:01:77"), Some(13));
        assert_eq!(find_pid(info, "fd:01:79"), None);
        assert_eq!(find_pid("", "fd:01:77"), None);
    }

    #[test]
    fn a_file_has_a_lock_for_each_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let [first, _other] =
            [7, u64::from(u32::MAX)].map(|byte| Lock::take_byte(&path, 0o600, byte).unwrap());
        let again = std::thread::spawn({
            let path = path.clone();
            move || Lock::take_byte(&path, 0o600, 7).map(drop)
        });
        let waits = || {
            fs::read_to_string("/proc/locks")
                .unwrap()
                .lines()
                .any(|line| line.contains("-> OFDLCK") && line.contains(&id_of(&first.0).unwrap()))
        };
        while !waits() {
            assert!(!again.is_finished(), "two hold the same lock");
            std::thread::yield_now();
        }
        drop(first);
        again.join().unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_planted_link_or_fifo_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let [link, target, fifo] = ["link", "target", "fifo"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let takes = [Lock::take as fn(&Path, u32) -> _, |path, mode| Lock::take_byte(path, mode, 1)];
        for take in takes {
            take(&link, 0o600).unwrap_err();
            let _ = take(&fifo, 0o600);
        }
        assert!(!target.exists());
    }

    #[test]
    fn the_kernel_names_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = Lock::take(&path, 0o600).unwrap();
        let id = id_of(&lock.0).unwrap();
        // One that waits has the file open too.
        let waiter = Command::new("flock").arg(&path).arg("true").spawn().unwrap();
        let process = named(holder(&path, &id).unwrap());
        assert!(process.starts_with(&format!("process {} (", std::process::id())), "{process}");
        drop(lock);
        assert!(waiter.wait_with_output().unwrap().status.success());
        assert_eq!(holder(&path, &id), None);
        Lock::take(&path, 0o600).unwrap();
    }
}

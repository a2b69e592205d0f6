//! Files in folders that others write too: a link, a FIFO, a device or a folder may stand in a file's place.
//!
//! # References
//! `O_NOFOLLOW`, `O_NONBLOCK` and `O_EXCL` in open(2); `RENAME_NOREPLACE` in rename(2).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The flags with which no link in the last part of a path is followed, and no FIFO waits for its other end.
pub const SAFELY: i32 = O_NOFOLLOW | O_NONBLOCK;

/// The largest file of ours in bytes: no result, state or lease has more than a few kB.
pub const LIMIT: u64 = 16 << 20;

/// Opens a regular file for reading. Never waits.
///
/// # Errors
/// The last part of the path is a link, or something else than a regular file, or it cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(SAFELY).open(path)?)
}

/// As [`open`], of a path that an administrator chooses, and which may be a link: a configuration, or a mounted ConfigMap.
///
/// # Errors
/// Those of [`open`] except for links.
pub fn open_named(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?)
}

/// As [`open`], of a file that other users must not have made: it belongs to root, to this process's user, or to the owner of its folder.
///
/// # Errors
/// Those of [`open`], and another owner.
pub fn open_own(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    check_owner(&file, path).map(|()| file)
}

/// Checks the owner of an open file as [`open_own`] does.
///
/// # Errors
/// It has another owner, or none can be read.
pub fn check_owner(file: &File, path: &Path) -> io::Result<()> {
    let user = file.metadata()?.uid();
    if [0, geteuid().as_raw()].contains(&user) || fs::metadata(folder_of(path))?.uid() == user {
        return Ok(());
    }
    Err(other(&format!("it belongs to user {user}")))
}

/// Opens the file of a lock, or makes it. Its content does not matter.
///
/// # Errors
/// Those of [`open`], and it cannot be made.
pub fn open_lock(path: &Path, mode: u32) -> io::Result<File> {
    regular(OpenOptions::new().append(true).create(true).mode(mode).custom_flags(SAFELY).open(path)?)
}

/// Takes the lock of a file, which is made if needed. It is held as long as the file is open. `None` if another process has it.
///
/// # Errors
/// Those of [`open_lock`], with the path; the file cannot be locked.
pub fn try_lock(path: &Path, mode: u32) -> io::Result<Option<File>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file = open_lock(path, mode).map_err(named)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(named(error)),
    }
}

/// Whether another process has the lock of [`try_lock`]. No if there is no such file.
pub fn is_locked(path: &Path) -> bool {
    open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Reads a regular file of at most [`LIMIT`] bytes.
///
/// # Errors
/// Those of [`open`], and a larger file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, LIMIT)
}

/// As [`read`], with a limit in bytes.
///
/// # Errors
/// As [`read`].
pub fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    all(open(path)?, limit)
}

/// As [`read`], of the file that [`open_named`] opens.
///
/// # Errors
/// As [`open_named`], and a larger file.
pub fn read_named(path: &Path) -> io::Result<Vec<u8>> {
    all(open_named(path)?, LIMIT)
}

/// As [`read`], for UTF-8.
///
/// # Errors
/// As [`read`], and other bytes.
pub fn read_text(path: &Path) -> io::Result<String> {
    text(read(path)?)
}

/// As [`read_named`], for UTF-8.
///
/// # Errors
/// As [`read_named`], and other bytes.
pub fn read_named_text(path: &Path) -> io::Result<String> {
    text(read_named(path)?)
}

/// Replaces a file, or makes it: writes a new one beside it, and renames that. Readers see the old or the new content.
/// `pending` is the name of the new file, which may be left from a process that was killed. It gets a longer name if a folder has this one.
///
/// # Errors
/// The new file cannot be made, written or renamed. It does not stay.
pub fn replace(path: &Path, pending: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let (mut file, pending) = create(pending, mode)?;
    let written = file.write_all(content).and_then(|()| fs::rename(&pending, path));
    written.inspect_err(|_| drop(fs::remove_file(&pending)))
}

/// As [`replace`]. The old or the new content is also there after a loss of power, and the new one when this returns.
///
/// # Errors
/// As [`replace`], or the disk's. After one that comes with the last step the new file stays.
pub fn replace_durably(path: &Path, pending: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    put_durably(path, pending, mode, content, |pending| fs::rename(pending, path))
}

/// As [`replace_durably`], but never touches a file that exists.
///
/// # Errors
/// As [`replace_durably`]; [`ErrorKind::AlreadyExists`] if anything has the name.
pub fn create_durably(path: &Path, pending: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    put_durably(path, pending, mode, content, |pending| {
        match renameat_with(CWD, pending, CWD, path, RenameFlags::NOREPLACE) {
            // This file system cannot do it in one step. A link beside the name would leave two of them after a kill.
            Err(Errno::INVAL) if fs::symlink_metadata(path).is_err() => fs::rename(pending, path),
            Err(Errno::INVAL) => Err(ErrorKind::AlreadyExists.into()),
            outcome => Ok(outcome?),
        }
    })
}

fn put_durably(
    path: &Path,
    pending: &Path,
    mode: u32,
    content: &[u8],
    publish: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let (mut file, pending) = create(pending, mode)?;
    let written = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| publish(&pending));
    written.inspect_err(|_| drop(fs::remove_file(&pending)))?;
    File::open(folder_of(path))?.sync_all()
}

/// Makes the pending file. Returns its path too.
fn create(pending: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut path = pending.to_owned();
    let made = create(&path).or_else(|error| {
        if error.kind() != ErrorKind::AlreadyExists {
            return Err(error);
        }
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            path.as_mut_os_string().push(format!(".{}", std::process::id()));
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => create(&path),
        }
    });
    made.map(|file| (file, path))
}

/// The path of a pending file beside `path` that no other process uses. node_exporter ignores a name with this end.
pub fn pending_beside(path: &Path) -> PathBuf {
    path.with_extension(format!("pending{}", std::process::id()))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(other("it is no regular file")) }
}

fn all(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if file.take(limit + 1).read_to_end(&mut bytes)? as u64 > limit {
        return Err(other(&format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| other("it is no UTF-8"))
}

fn other(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// Makes one of each kind of foreign object.
    fn objects(folder: &Path) -> Vec<PathBuf> {
        let path = |name: &str| folder.join(name);
        fs::write(path("target"), "secret").unwrap();
        symlink(path("target"), path("link")).unwrap();
        symlink(path("nowhere"), path("dangling")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        mkfifo(&path("fifo"), Mode::S_IRWXU).unwrap();
        File::create(path("sparse")).unwrap().set_len(10 << 30).unwrap();
        ["link", "dangling", "folder", "fifo", "sparse"]
            .map(path)
            .into_iter()
            .chain(["/dev/zero".into()])
            .collect()
    }

    #[test]
    fn only_regular_files_of_a_sound_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        for path in objects(dir.path()) {
            let is_link = path.ends_with("link");
            assert!(read(&path).is_err(), "{}", path.display());
            assert_eq!(read_named(&path).is_ok(), is_link, "{}", path.display());
            assert!(open_lock(&path, 0o600).is_err() || path.ends_with("sparse"), "{}", path.display());
        }
        assert!(!dir.path().join("nowhere").exists(), "a lock has made what a link names");
        assert_eq!(read(&target).unwrap(), b"secret");
        assert!(read_up_to(&target, 5).is_err());
        assert_eq!(read(&dir.path().join("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_of_somebody_else_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        open_own(&path).unwrap();
        chown(&path, Some(1234), None).unwrap();
        assert_eq!(open_own(&path).unwrap_err().to_string(), "it belongs to user 1234");
        chown(dir.path(), Some(1234), None).unwrap();
        open_own(&path).unwrap();
    }

    #[test]
    fn one_process_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(!is_locked(&path));
        let first = try_lock(&path, 0o600).unwrap();
        assert!(first.is_some() && is_locked(&path) && try_lock(&path, 0o600).unwrap().is_none());
        drop(first);
        assert!(!is_locked(&path) && try_lock(&path, 0o600).unwrap().is_some());
        assert!(
            try_lock(dir.path(), 0o600)
                .unwrap_err()
                .to_string()
                .starts_with(&dir.path().display().to_string())
        );
    }

    #[test]
    fn a_file_is_replaced_whatever_stands_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let pending = dir.path().join("pending");
        for replace in [replace, replace_durably] {
            for path in objects(dir.path()).iter().filter(|path| path.starts_with(&dir) && !path.is_dir()) {
                let _ = fs::remove_file(&pending);
                symlink(dir.path().join("target"), &pending).unwrap();
                replace(path, &pending, 0o640, b"new").unwrap();
                assert_eq!(read(path).unwrap(), b"new");
                assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o640);
                assert!(!pending.exists());
                assert_eq!(
                    create_durably(path, &pending, 0o640, b"").unwrap_err().kind(),
                    ErrorKind::AlreadyExists
                );
                assert!(!pending.exists());
                fs::remove_file(path).unwrap();
            }
            assert_eq!(
                fs::read(dir.path().join("target")).unwrap(),
                b"secret",
                "a planted link was followed"
            );
            assert!(replace(&dir.path().join("folder"), &pending, 0o600, b"").is_err());
            assert!(!pending.exists());
            fs::remove_dir(dir.path().join("folder")).unwrap();
        }
    }

    #[test]
    fn a_file_is_made_once_and_a_folder_with_the_pending_name_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let [path, pending] = ["file", "pending"].map(|name| dir.path().join(name));
        fs::create_dir_all(pending.join("full")).unwrap();
        create_durably(&path, &pending, 0o600, b"new").unwrap();
        assert_eq!((read(&path).unwrap(), fs::metadata(&path).unwrap().nlink()), (b"new".to_vec(), 1));
        replace(&path, &pending, 0o600, b"newer").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}

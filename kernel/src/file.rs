//! Files in folders that others write too: a link, a FIFO, a device or a folder may stand in a file's place.
//!
//! # References
//! `O_NOFOLLOW`, `O_NONBLOCK` and `O_EXCL` in open(2).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

/// The flags with which no link in the last part of a path is followed, and no FIFO waits for its other end.
pub const SAFELY: i32 = O_NOFOLLOW | O_NONBLOCK;

/// The largest file of ours in bytes: no result, state or lease has more than a few kB.
pub const LIMIT: u64 = 16 << 20;

/// Opens a regular file for reading. Never waits.
///
/// # Errors
/// The last part of the path is a link, or something else than a regular file, or it cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(SAFELY).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(other("it is no regular file")) }
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
    let mut bytes = Vec::new();
    if open(path)?.take(limit + 1).read_to_end(&mut bytes)? as u64 > limit {
        return Err(other(&format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

/// As [`read`], for UTF-8.
///
/// # Errors
/// As [`read`], and other bytes.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| other("it is no UTF-8"))
}

/// Replaces a file, or makes it: writes a new one beside it, and renames that. Readers see the old or the new content.
/// `pending` is the name of the new file, which may be left from a process that was killed.
///
/// # Errors
/// The new file cannot be made, written or renamed. It does not stay.
pub fn replace(path: &Path, pending: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(mode).open(pending);
    let mut file = match create() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(pending)?;
            create()?
        }
        outcome => outcome?,
    };
    let written = file.write_all(content).and_then(|()| fs::rename(pending, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(pending);
    })
}

/// The path of a pending file beside `path` that no other process uses. node_exporter ignores a name with this end.
pub fn pending_beside(path: &Path) -> PathBuf {
    path.with_extension(format!("pending{}", std::process::id()))
}

fn other(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

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
        for path in objects(dir.path()) {
            assert!(read(&path).is_err(), "{}", path.display());
        }
        assert_eq!(read(&dir.path().join("target")).unwrap(), b"secret");
        assert!(read_up_to(&dir.path().join("target"), 5).is_err());
        assert_eq!(read(&dir.path().join("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_is_replaced_whatever_stands_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let pending = dir.path().join("pending");
        for path in objects(dir.path()).iter().filter(|path| path.starts_with(&dir) && !path.is_dir()) {
            let _ = fs::remove_file(&pending);
            symlink(dir.path().join("target"), &pending).unwrap();
            replace(path, &pending, 0o640, b"new").unwrap();
            assert_eq!(read(path).unwrap(), b"new");
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o640);
            assert!(!pending.exists());
        }
        assert_eq!(fs::read(dir.path().join("target")).unwrap(), b"secret", "a planted link was followed");
        assert!(replace(&dir.path().join("folder"), &pending, 0o600, b"").is_err());
        assert!(!pending.exists());
    }
}

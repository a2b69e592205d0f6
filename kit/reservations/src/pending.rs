//! A file that gets its name only when its content is complete, and only if the name is free. A crash
//! therefore never leaves an incomplete file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;

/// The pending file's name if the file system does not support O_TMPFILE. If a crash leaves this file, the
/// reference takes it for another reservation of the attachment, which DEL removes; the next pending file
/// removes it too.
const NAME: &str = ".ferrule-draft";

/// A file without a name, or with a temporary one. The store must stay locked while this exists.
#[derive(Debug)]
pub struct PendingFile {
    /// The file.
    pub file: File,
    temporary: Option<PathBuf>,
}

impl PendingFile {
    /// Creates the file in the directory `dir` and writes its content.
    pub fn new(dir: &Path, content: &str) -> io::Result<Self> {
        let mut pending = match PendingFile::nameless(dir) {
            // The errors of file systems and kernels without O_TMPFILE.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => PendingFile::named(dir)?,
            outcome => outcome?,
        };
        pending.file.write_all(content.as_bytes())?;
        Ok(pending)
    }

    fn nameless(dir: &Path) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(PendingFile { file: file.into(), temporary: None })
    }

    fn named(dir: &Path) -> io::Result<Self> {
        let path = dir.join(NAME);
        // Remove a leftover instead of truncating it: if it has a second hard link, that one must keep its
        // content.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(PendingFile { file, temporary: Some(path) })
    }

    /// Gives the file its name. Returns false if the name is taken; the caller may then try another name.
    pub fn publish(&mut self, path: &Path) -> io::Result<bool> {
        let Some(temporary) = &self.temporary else {
            let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            return match linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(error) => Err(error.into()),
            };
        };
        // A file system without O_TMPFILE may lack hard links too. The lock keeps other calls from creating
        // `path` in between.
        match fs::symlink_metadata(path) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::rename(temporary, path)?;
                self.temporary = None;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if let Some(path) = &self.temporary {
            // If this fails, the next pending file removes the leftover.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Files with and without O_TMPFILE behave alike.
    #[test]
    fn name_is_used_once_and_a_dropped_file_leaves_nothing() {
        let make: [fn(&Path) -> PendingFile; 2] =
            [|dir| PendingFile::nameless(dir).unwrap(), |dir| PendingFile::named(dir).unwrap()];
        for make in make {
            let dir = tempfile::tempdir().unwrap();
            let (a, b) = (dir.path().join("10.0.0.1"), dir.path().join("10.0.0.2"));
            fs::write(&a, "other").unwrap();
            fs::write(dir.path().join(NAME), "left by a crash").unwrap();
            fs::hard_link(dir.path().join(NAME), dir.path().join("second-name")).unwrap();
            let mut pending = make(dir.path());
            pending.file.write_all(b"mine").unwrap();
            assert!(!pending.publish(&a).unwrap());
            assert!(pending.publish(&b).unwrap());
            drop(pending);
            drop(make(dir.path()));
            let _ = fs::remove_file(dir.path().join(NAME));
            assert_eq!(names(dir.path()), ["10.0.0.1", "10.0.0.2", "second-name"]);
            assert_eq!(fs::read(&a).unwrap(), b"other");
            assert_eq!(fs::read(&b).unwrap(), b"mine");
            assert_eq!(fs::read(dir.path().join("second-name")).unwrap(), b"left by a crash");
        }
    }
}

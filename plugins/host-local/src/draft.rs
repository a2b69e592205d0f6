//! A file that is written but not there yet: it gets its name when it is complete, and only if that name is
//! free, so that no crash leaves half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;

/// The name of a draft where files without a name cannot be made. What a crash leaves there the reference takes for
/// one more file of that attachment, which DEL removes; the next draft removes it as well.
const NAME: &str = ".ferrule-draft";

/// A file without a name, or with one that is no address. The store must be locked as long as it lives.
#[derive(Debug)]
pub struct Draft {
    file: File,
    temporary: Option<PathBuf>,
}

impl Draft {
    /// Writes a draft in the folder `dir`.
    ///
    /// # Errors
    /// Whatever keeps the file from being made or written.
    pub fn new(dir: &Path, content: &str) -> io::Result<Self> {
        let mut draft = match Draft::nameless(dir) {
            // What file systems without O_TMPFILE, and kernels without it, answer.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Draft::named(dir)?,
            outcome => outcome?,
        };
        draft.file.write_all(content.as_bytes())?;
        Ok(draft)
    }

    fn nameless(dir: &Path) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Draft { file: file.into(), temporary: None })
    }

    fn named(dir: &Path) -> io::Result<Self> {
        let path = dir.join(NAME);
        // Never truncate a leftover: should it have a second name, that one would lose its content too.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Draft { file, temporary: Some(path) })
    }

    /// Gives the draft its name. `false` if that is taken; the draft can then be given another.
    ///
    /// # Errors
    /// Whatever else keeps it from getting the name.
    pub fn publish(&mut self, path: &Path) -> io::Result<bool> {
        let Some(temporary) = &self.temporary else {
            let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            return match linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(error) => Err(error.into()),
            };
        };
        // Not every such file system has hard links either. Nobody can come in between: the store is locked.
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

impl AsFd for Draft {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(path) = &self.temporary {
            // If it stays, the next draft removes it.
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

    /// Both ways of making a draft do the same.
    #[test]
    fn a_name_is_given_once_and_a_failed_draft_leaves_nothing() {
        let make: [fn(&Path) -> Draft; 2] =
            [|dir| Draft::nameless(dir).unwrap(), |dir| Draft::named(dir).unwrap()];
        for make in make {
            let dir = tempfile::tempdir().unwrap();
            let (a, b) = (dir.path().join("10.0.0.1"), dir.path().join("10.0.0.2"));
            fs::write(&a, "other").unwrap();
            fs::write(dir.path().join(NAME), "left by a crash").unwrap();
            fs::hard_link(dir.path().join(NAME), dir.path().join("second-name")).unwrap();
            let mut draft = make(dir.path());
            draft.file.write_all(b"mine").unwrap();
            assert!(!draft.publish(&a).unwrap());
            assert!(draft.publish(&b).unwrap());
            drop(draft);
            drop(make(dir.path()));
            let _ = fs::remove_file(dir.path().join(NAME));
            assert_eq!(names(dir.path()), ["10.0.0.1", "10.0.0.2", "second-name"]);
            assert_eq!(fs::read(&a).unwrap(), b"other");
            assert_eq!(fs::read(&b).unwrap(), b"mine");
            assert_eq!(fs::read(dir.path().join("second-name")).unwrap(), b"left by a crash");
        }
    }
}

//! Copies of files.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid, XattrFlags};
use rustix::fs::{chownat, fgetxattr, flistxattr, fsetxattr, utimensat};

/// Creates a file for a program: complete, on disk, and executable by everybody when this returns.
///
/// # Errors
/// The error of the system call.
pub fn program(source: &mut File, path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(path)?;
    io::copy(source, &mut file)?;
    // The mode depends neither on the source nor on the umask.
    file.set_permissions(Permissions::from_mode(0o755))?;
    file.sync_all()
}

/// Copies a file with owner, mode, times and extended attributes, or a symbolic link with owner and times.
/// The copy is on disk when this returns.
///
/// # Errors
/// The error of the system call. Only root can keep another owner; that is no error for other users.
pub fn exact(source: &Path, path: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(source)?;
    if meta.is_symlink() {
        symlink(fs::read_link(source)?, path)?;
        chown(path, &meta)?;
        return times(path, &meta);
    }
    let mut from = File::open(source)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    io::copy(&mut from, &mut file)?;
    chown(path, &meta)?;
    // After the owner, because chown(2) removes setuid bits.
    file.set_permissions(Permissions::from_mode(meta.mode() & 0o7777))?;
    attributes(&from, &file);
    times(path, &meta)?;
    file.sync_all()
}

fn chown(path: &Path, meta: &fs::Metadata) -> io::Result<()> {
    let made = fs::symlink_metadata(path)?;
    if (made.uid(), made.gid()) == (meta.uid(), meta.gid()) {
        return Ok(());
    }
    let owner = (Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())));
    match chownat(CWD, path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW) {
        Err(_) if !nix::unistd::geteuid().is_root() => Ok(()),
        outcome => Ok(outcome?),
    }
}

fn times(path: &Path, meta: &fs::Metadata) -> io::Result<()> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: meta.atime(), tv_nsec: meta.atime_nsec() },
        last_modification: Timespec { tv_sec: meta.mtime(), tv_nsec: meta.mtime_nsec() },
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Copies the extended attributes that the file system takes: labels of SELinux, capabilities.
fn attributes(from: &File, to: &File) {
    let mut names = Vec::with_capacity(4096);
    if flistxattr(from, spare_capacity(&mut names)).is_err() {
        return;
    }
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::with_capacity(4096);
        if fgetxattr(from, name, spare_capacity(&mut value)).is_ok() {
            let _ = fsetxattr(to, name, &value, XattrFlags::empty());
        }
    }
}

/// Creates a folder that everybody may read.
///
/// # Errors
/// The error of the system call; not if the folder exists.
pub fn folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capability of the file, as setcap(8) writes it: 20 bytes, version 2, CAP_NET_RAW permitted.
    #[test]
    fn an_exact_copy_has_the_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
        fs::write(&source, "content").unwrap();
        let mut capability = [0; 20];
        capability[..8].copy_from_slice(&[0, 0, 0, 2, 0, 32, 0, 0]);
        let name = "security.capability";
        fsetxattr(File::open(&source).unwrap(), name, &capability, XattrFlags::empty()).unwrap();
        exact(&source, &copy).unwrap();
        let mut value = [0; 64];
        let length = fgetxattr(File::open(&copy).unwrap(), name, &mut value[..]).unwrap();
        assert_eq!(value[..length], capability);
        assert!(exact(&source, &copy).is_err());
    }
}

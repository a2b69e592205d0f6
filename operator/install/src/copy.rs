//! Copies of files.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use xattr::FileExt;

/// Creates a file for a program: complete, on disk, and executable by everybody when this returns.
///
/// # Errors
/// The error of the system call.
pub fn program(source: &Path, path: &Path) -> io::Result<()> {
    let file = content(&mut File::open(source)?, path)?;
    // The mode depends neither on the source nor on the umask.
    file.set_permissions(Permissions::from_mode(0o755))?;
    file.sync_all()
}

/// Copies a file with owner, mode, times and extended attributes, or a symbolic link with its owner.
/// The copy is on disk when this returns.
///
/// # Errors
/// The error of the system call. Only root can keep another owner; that is no error for other users.
pub fn exact(source: &Path, path: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(source)?;
    if meta.is_symlink() {
        symlink(fs::read_link(source)?, path)?;
        return chown(path, &meta);
    }
    let mut from = File::open(source)?;
    let file = content(&mut from, path)?;
    chown(path, &meta)?;
    // After the owner, because chown(2) removes setuid bits.
    file.set_permissions(Permissions::from_mode(meta.mode() & 0o7777))?;
    // Those that the file system takes: labels of SELinux, capabilities.
    for name in from.list_xattr().into_iter().flatten() {
        if let Ok(Some(value)) = from.get_xattr(&name) {
            let _ = file.set_xattr(&name, &value);
        }
    }
    file.set_times(FileTimes::new().set_accessed(meta.accessed()?).set_modified(meta.modified()?))?;
    file.sync_all()
}

/// Copies the content into a new file that only this user may read.
fn content(source: &mut File, path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    io::copy(source, &mut file)?;
    Ok(file)
}

fn chown(path: &Path, meta: &fs::Metadata) -> io::Result<()> {
    match lchown(path, Some(meta.uid()), Some(meta.gid())) {
        Err(_) if !nix::unistd::geteuid().is_root() => Ok(()),
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
        xattr::set(&source, name, &capability).unwrap();
        exact(&source, &copy).unwrap();
        assert_eq!(xattr::get(&copy, name).unwrap().unwrap(), capability);
        assert!(exact(&source, &copy).is_err());
    }
}

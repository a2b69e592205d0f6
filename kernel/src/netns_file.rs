//! Network namespaces with a path, as runtimes and `ip netns add` make them.
//!
//! # References
//! ip-netns(8); mount_namespaces(7).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Makes a new network namespace, which lives at this path until [`remove`]. Its folder is made if there is none.
///
/// # Errors
/// Something has this path, or the kernel refuses a step. Then nothing is left.
pub fn make(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    OpenOptions::new().write(true).create_new(true).mode(0o444).open(path)?;
    // The namespace of a thread that ends at once.
    let bind = || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    };
    let bound = thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, bind) {
        Ok(thread) => thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread has panicked"))),
        Err(error) => Err(error),
    });
    bound.inspect_err(|_| drop(fs::remove_file(path)))
}

/// Removes the path of a namespace, which ends if nothing else holds it. Follows no link. Returns whether there was one.
///
/// # Errors
/// The kernel refuses it.
pub fn remove(path: &Path) -> io::Result<bool> {
    // More than one mount may be on it. There is none after a kill between two steps of `make`.
    loop {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use cni_lab::{Node, Place as _};

    use super::*;

    #[test]
    fn a_namespace_lives_from_make_to_remove() {
        let node = Node::new().unwrap();
        node.run(|| {
            let path = Path::new("/run/netns-file/a");
            make(path).unwrap();
            let inode = fs::metadata(path).unwrap().ino();
            assert_ne!(inode, fs::metadata("/proc/thread-self/ns/net").unwrap().ino());
            assert_eq!(make(path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::metadata(path).unwrap().ino(), inode);
            // Mounted twice.
            mount(Some(path), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            assert!(remove(path).unwrap() && !path.exists());
            assert!(!remove(path).unwrap());
            fs::write(path, "").unwrap();
            assert!(remove(path).unwrap() && !path.exists(), "an empty file of a killed call stays");
        })
        .unwrap();
    }
}

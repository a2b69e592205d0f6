//! Whether a container's network namespace still exists. `portmap` asks before it takes over a host port, `ferrule gc` before
//! it removes anything: for both a container is gone on the same evidence.
//!
//! A path says nothing to a process with other mounts, whose `/run` may be another folder. So a path that leads nowhere is no
//! proof: the caller must also show that it sees what the runtime sees there.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The network namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";
/// The mount namespace of this process.
const MOUNTS: &str = "/proc/self/ns/mnt";

/// Device and inode number of a file.
pub type Identity = (u64, u64);

/// What a path says about a container's network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// It exists.
    Present(Identity),
    /// It does not exist.
    Gone {
        /// Nothing has the path. Else something else is there.
        is_missing: bool,
    },
    /// A process with other mounts or more rights may see it.
    #[default]
    Unknown,
}

impl Presence {
    /// The inode number of a namespace that exists.
    pub fn inode(self) -> Option<u64> {
        if let Presence::Present((_, inode)) = self { Some(inode) } else { None }
    }
}

/// The proof that this process sees the same files as the process that knows the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The mount namespace of ADD, and the folder of the path at that time. The number of a mount namespace alone does not
    /// suffice, because the kernel reuses it. In another mount namespace the namespace is gone only if its name is
    /// missing from this very folder: the kernel detaches a mount everywhere if its name is removed.
    Recorded {
        /// The mount namespace.
        mounts: Identity,
        /// The folder of the path.
        folder: Identity,
    },
    /// The caller has proven that it sees the node as the node's first process does.
    Node,
    /// Nothing does.
    Unproven,
}

impl View {
    /// The view of this process on a path. `None` if the folder or the mount namespace cannot be read.
    pub fn record(path: &Path) -> Option<View> {
        Some(View::Recorded { mounts: identity(MOUNTS)?, folder: identity(path.parent()?)? })
    }

    /// Whether a path that does not lead to the namespace proves that it is gone.
    fn is_proof(self, path: &Path, is_missing: bool) -> bool {
        match self {
            View::Node => true,
            View::Unproven => false,
            View::Recorded { mounts, folder } => {
                let in_same_mounts = identity(MOUNTS) == Some(mounts);
                let in_same_folder = path.parent().and_then(identity) == Some(folder);
                // A path in /proc has no folder any more if its process is gone.
                in_same_folder && (in_same_mounts || is_missing)
                    || in_same_mounts && path.starts_with("/proc")
            }
        }
    }
}

/// The state at a path now. `namespace` is the namespace that it led to at ADD; if that is not recorded, each network namespace except
/// that of this thread counts as the container's.
pub fn look(path: &Path, namespace: Option<Identity>, view: View) -> Presence {
    let found = match fs::metadata(path) {
        Ok(meta) => Some(of(&meta)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(_) => return Presence::Unknown,
    };
    let is_it = match (found, namespace) {
        (None, _) => false,
        (Some(found), Some(namespace)) => found == namespace,
        (Some(found), None) => match identity(OWN) {
            None => return Presence::Unknown,
            Some(own) if found == own => return Presence::Unknown,
            Some((device, _)) => found.0 == device,
        },
    };
    match found {
        Some(found) if is_it => Presence::Present(found),
        _ if view.is_proof(path, found.is_none()) => Presence::Gone { is_missing: found.is_none() },
        _ => Presence::Unknown,
    }
}

/// The identity of a file. `None` if it does not exist or cannot be read.
pub fn identity(path: impl AsRef<Path>) -> Option<Identity> {
    try_identity(path).ok()
}

/// As [`identity`].
///
/// # Errors
/// Why the file cannot be read.
pub fn try_identity(path: impl AsRef<Path>) -> io::Result<Identity> {
    fs::metadata(path).map(|meta| of(&meta))
}

fn of(meta: &Metadata) -> Identity {
    (meta.dev(), meta.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_a_namespace_proves_nothing_in_another_view() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("netns");
        let elsewhere = View::Recorded { mounts: (0, 0), folder: (0, 0) };
        let recorded = View::record(&path).unwrap();
        let states = || [View::Node, recorded, elsewhere, View::Unproven].map(|view| look(&path, None, view));
        let gone = |is_missing| Presence::Gone { is_missing };
        assert_eq!(states(), [gone(true), gone(true), Presence::Unknown, Presence::Unknown]);
        fs::write(&path, "").unwrap();
        assert_eq!(states(), [gone(false), gone(false), Presence::Unknown, Presence::Unknown]);
        // Without the right to look.
        assert_eq!(look(&path.join("below"), None, View::Node), Presence::Unknown);
        assert_eq!(look(Path::new("/proc/self/ns/net"), None, View::Node), Presence::Unknown, "its own");
    }
}

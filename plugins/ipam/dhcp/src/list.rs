//! What the operator's tool reads of the daemon's leases, and how it releases one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Code};
use ferrule_kernel::file;
use ferrule_kit::dead;
use ferrule_kit::state_file::Seen;
use serde::Deserialize as _;
use serde_json::Value;

use crate::client::{self, Error};
use crate::wire::{Family, Key, Operation, lease_dir, lease_file};

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its file.
    pub path: PathBuf,
    /// Its attachment.
    pub key: Key,
    /// The address; empty if unknown.
    pub address: String,
    /// The server's address, or its DUID with DHCPv6; empty if unknown.
    pub server: String,
    /// CNI_NETNS.
    pub netns: String,
}

/// Lists the leases of the daemon with this socket. A missing folder has none.
pub fn list(socket: &Path) -> Vec<Listed> {
    let read = |path: PathBuf| {
        let state: Value = serde_json::from_slice(&file::read(&path).ok()?).ok()?;
        let text = |group: &str, name: &str| state[group][name].as_str().unwrap_or_default().to_owned();
        Some(Listed {
            key: Key::deserialize(state.get("key")?).ok()?,
            address: text("lease", "address"),
            server: text("lease", "server"),
            netns: text("sandbox", "path"),
            path,
        })
    };
    let files = fs::read_dir(lease_dir(socket)).into_iter().flatten().flatten().map(|file| file.path());
    // The name of a pending file begins with a dot.
    let is_pending =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    files.filter(|path| !is_pending(path)).filter_map(read).collect()
}

/// Asks the daemons, which the sockets lead to, to release the attachments' leases whom `are_dead` names by one answer for each, once some
/// are found; without a daemon removes their files. A file that was written after the answer stays. Returns for each whether it was there
/// and is released, or the daemon's error. A daemon that does not answer is asked once.
pub fn release(
    leases: &[(PathBuf, Key)],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Vec<Result<bool, CniError>> {
    let files = |(socket, key): &(PathBuf, Key)| {
        Family::ALL.map(|family| Seen::now(&lease_file(socket, key, family)))
    };
    let found: Vec<_> = leases.iter().map(files).collect();
    let is_there = found.iter().map(|files| files.iter().any(Option::is_some)).collect();
    let dead = dead::confirmed(is_there, are_dead);
    let mut silent: BTreeMap<&Path, CniError> = BTreeMap::new();
    let mut outcomes = Vec::new();
    for ((lease, found), is_dead) in leases.iter().zip(&found).zip(dead) {
        let socket = lease.0.as_path();
        outcomes.push(match silent.get(socket) {
            _ if !is_dead || files(lease) != *found => Ok(false),
            Some(error) => Err(error.clone()),
            None => {
                let Key { network, container_id, ifname } = &lease.1;
                let request =
                    crate::request(Operation::Release, Attachment { network, container_id, ifname });
                match client::ask(socket, &request) {
                    Ok(_) => Ok(true),
                    Err(Error::NoDaemon(_)) => client::forget(socket, &request).map(|()| true),
                    Err(Error::Failed(error)) => {
                        if error.code == Code::Io {
                            silent.insert(socket, error.clone());
                        }
                        Err(error)
                    }
                }
            }
        });
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_broken_daemon_is_asked_once_and_new_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dhcp.sock");
        fs::create_dir_all(lease_dir(&socket)).unwrap();
        let key = |id: &str| Key { network: "n".into(), container_id: id.into(), ifname: "e".into() };
        let leases = ["a", "b", "c", "none"].map(|id| (socket.clone(), key(id)));
        let write = |at: usize| {
            fs::write(dir.path().join("pending"), "").unwrap();
            fs::rename(dir.path().join("pending"), lease_file(&socket, &leases[at].1, Family::Ipv4)).unwrap();
        };
        (0..3).for_each(write);
        let (listener, asked) = (UnixListener::bind(&socket).unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&asked);
        thread::spawn(move || {
            for _ in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let outcomes = release(&leases, &mut || vec![true, false, true, true]);
        assert!(outcomes[0].is_err() && outcomes[2].is_err(), "{outcomes:?}");
        assert_eq!((&outcomes[1], &outcomes[3]), (&Ok(false), &Ok(false)));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // Without a daemon the files go. One that an ADD has written since is another lease's.
        fs::remove_file(&socket).unwrap();
        let outcomes = release(&leases, &mut || {
            write(1);
            vec![true; 4]
        });
        assert_eq!(outcomes, [Ok(true), Ok(false), Ok(true), Ok(false)]);
        assert_eq!(fs::read_dir(lease_dir(&socket)).unwrap().count(), 1);
    }
}

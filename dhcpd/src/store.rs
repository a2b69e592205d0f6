//! The leases on the disk: one state file for each, which is complete or absent.
//!
//! The folder is beside the socket, in /run. A reboot ends all containers, so nothing needs to survive it; should the folder
//! survive nevertheless, the boot ID tells.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ferrule_dhcp::wire::{Key, lease_dir, lease_file};
use serde::{Deserialize, Serialize};

use crate::lease::Lease;
use crate::link::Interface;
use crate::log;
use crate::message::Client;

/// The name of a pending file. No lease has it: container IDs begin with a letter or digit.
const PENDING: &str = ".pending";

/// The version of the format.
const FORMAT: u32 = 1;

/// The state of a lease, as far as its file keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) key: Key,
    // The name of the file's first format.
    #[serde(rename = "sandbox")]
    pub(crate) interface: Interface,
    pub(crate) client: Client,
    /// False while the server's acknowledgement is awaited.
    pub(crate) confirmed: bool,
    pub(crate) lease: Lease,
}

/// The content of a state file.
#[derive(Serialize, Deserialize)]
struct Content<S> {
    format: u32,
    /// The boot to which the times belong.
    boot_id: String,
    #[serde(flatten)]
    state: S,
}

/// The folder with the state files.
#[derive(Debug)]
pub(crate) struct Store {
    socket: PathBuf,
    boot_id: String,
}

impl Store {
    /// The folder beside this socket.
    pub(crate) fn open(socket: &Path, boot_id: String) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(lease_dir(socket))?;
        Ok(Store { socket: socket.to_owned(), boot_id })
    }

    /// Writes the file of a lease, or replaces it.
    pub(crate) fn write(&self, state: &State) -> io::Result<()> {
        let content = Content { format: FORMAT, boot_id: self.boot_id.clone(), state };
        let pending = lease_dir(&self.socket).join(PENDING);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&pending)?;
        file.write_all(&serde_json::to_vec_pretty(&content)?)?;
        drop(file);
        fs::rename(pending, lease_file(&self.socket, &state.key))
    }

    /// The state of an attachment's lease, if it has one.
    pub(crate) fn find(&self, key: &Key) -> io::Result<Option<State>> {
        match fs::read(lease_file(&self.socket, key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => Ok(Some(serde_json::from_slice::<Content<State>>(&text?)?.state)),
        }
    }

    /// Removes the file of a lease, if there is one.
    pub(crate) fn remove(&self, key: &Key) -> io::Result<()> {
        remove(&lease_file(&self.socket, key))
    }

    /// The leases of this boot. Removes all other files: no container of another boot exists.
    pub(crate) fn list(&self) -> io::Result<Vec<State>> {
        let mut states = Vec::new();
        for entry in fs::read_dir(lease_dir(&self.socket))? {
            let path = entry?.path();
            // The file that a pending one should have replaced is still there.
            if !path.ends_with(PENDING) {
                let read =
                    fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Content<State>>(&text)?));
                let why = match read {
                    Ok(content) if content.format == FORMAT && content.boot_id == self.boot_id => {
                        states.push(content.state);
                        continue;
                    }
                    Ok(_) => "of another boot or version".to_owned(),
                    Err(error) => error.to_string(),
                };
                log(&format!("{}: removed: {why}", path.display()));
            }
            remove(&path)?;
        }
        Ok(states)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn files_of_another_boot_and_broken_ones_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dhcp.sock");
        let store = Store::open(&socket, "this boot".to_owned()).unwrap();
        let key = |id: &str| Key {
            network: "n".to_owned(),
            container_id: id.to_owned(),
            ifname: "eth0".to_owned(),
        };
        let interface = Interface {
            path: "/run/netns/x".into(),
            identity: (4, 5),
            ifname: "eth0".to_owned(),
            index: 2,
            mac: [2, 0, 0, 0, 0, 1],
        };
        let client = crate::message::tests::client(&[(12, "h")]);
        let lease = Lease {
            address: Ipv4Addr::new(10, 0, 0, 5),
            prefix: 24,
            server: Ipv4Addr::new(10, 0, 0, 1),
            server_mac: [2; 6],
            renew_at: 1,
            rebind_at: 2,
            expires_at: u64::MAX,
            settings: Default::default(),
        };
        let state = |id| State {
            key: key(id),
            interface: interface.clone(),
            client: client.clone(),
            confirmed: true,
            lease: lease.clone(),
        };
        store.write(&state("a")).unwrap();
        let other = Store::open(&socket, "another".to_owned()).unwrap();
        other.write(&state("b")).unwrap();
        fs::write(lease_dir(&socket).join("broken"), "{").unwrap();
        fs::copy(lease_file(&socket, &key("a")), lease_dir(&socket).join(PENDING)).unwrap();
        let states = store.list().unwrap();
        assert_eq!(states.len(), 1);
        assert_eq!((&states[0].key, &states[0].lease, &states[0].client), (&key("a"), &lease, &client));
        assert_eq!(fs::read_dir(lease_dir(&socket)).unwrap().count(), 1);
        let [listed] = ferrule_dhcp::list::list(&socket).try_into().unwrap();
        assert_eq!(listed.key, key("a"));
        assert_eq!(
            [&listed.address, &listed.server, &listed.netns],
            ["10.0.0.5", "10.0.0.1", "/run/netns/x"]
        );
        store.remove(&key("a")).unwrap();
        store.remove(&key("a")).unwrap();
        assert!(store.list().unwrap().is_empty());
    }
}

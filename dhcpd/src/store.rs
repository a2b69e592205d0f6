//! The leases on the disk: one file for each, which is complete or absent.
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
use crate::link::Sandbox;
use crate::log;
use crate::message::{Client, name};

/// The name of a file that is not complete yet. No lease has it: container IDs begin with a letter or digit.
const PENDING: &str = ".pending";

/// The version of the format.
const FORMAT: u32 = 1;

/// The content of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    /// The boot to which the times belong.
    boot_id: String,
    pub(crate) key: Key,
    pub(crate) sandbox: Sandbox,
    pub(crate) client: Client,
    /// False while the server's acknowledgement is awaited.
    pub(crate) confirmed: bool,
    pub(crate) lease: Lease,
}

/// The folder with the files.
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
    pub(crate) fn write(
        &self,
        key: &Key,
        sandbox: &Sandbox,
        client: &Client,
        confirmed: bool,
        lease: &Lease,
    ) -> io::Result<()> {
        let record = Record {
            format: FORMAT,
            boot_id: self.boot_id.clone(),
            key: key.clone(),
            sandbox: sandbox.clone(),
            client: client.clone(),
            confirmed,
            lease: lease.clone(),
        };
        let pending = lease_dir(&self.socket).join(PENDING);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&pending)?;
        file.write_all(&serde_json::to_vec_pretty(&record)?)?;
        drop(file);
        fs::rename(pending, lease_file(&self.socket, key))
    }

    /// The lease of an attachment, if it has one.
    pub(crate) fn read(&self, key: &Key) -> io::Result<Option<Record>> {
        match fs::read(lease_file(&self.socket, key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => Ok(Some(serde_json::from_slice(&text?)?)),
        }
    }

    /// Removes the file of a lease, if there is one.
    pub(crate) fn remove(&self, key: &Key) -> io::Result<()> {
        remove(&lease_file(&self.socket, key))
    }

    /// Reads the leases of this boot. Removes all other files: no container of another boot exists.
    pub(crate) fn load(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(lease_dir(&self.socket))? {
            let path = entry?.path();
            if path.ends_with(PENDING) {
                // The file that it should have replaced is still there.
                remove(&path)?;
                continue;
            }
            let read = fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Record>(&text)?));
            match read {
                Ok(record) if record.format == FORMAT && record.boot_id == self.boot_id => {
                    records.push(record)
                }
                Ok(record) => {
                    log(&format!("{}: dropped: of another boot or version", name(&record.key)));
                    remove(&path)?;
                }
                Err(error) => {
                    log(&format!("{}: removed: {error}", path.display()));
                    remove(&path)?;
                }
            }
        }
        Ok(records)
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
        let sandbox = Sandbox {
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
        store.write(&key("a"), &sandbox, &client, true, &lease).unwrap();
        let other = Store::open(&socket, "another".to_owned()).unwrap();
        other.write(&key("b"), &sandbox, &client, true, &lease).unwrap();
        fs::write(lease_dir(&socket).join("broken"), "{").unwrap();
        fs::copy(lease_file(&socket, &key("a")), lease_dir(&socket).join(PENDING)).unwrap();
        let records = store.load().unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!((&records[0].key, &records[0].lease, &records[0].client), (&key("a"), &lease, &client));
        assert_eq!(fs::read_dir(lease_dir(&socket)).unwrap().count(), 1);
        let [listed] = ferrule_dhcp::survey::list(&socket).try_into().unwrap();
        let names = [&listed.network, &listed.container_id, &listed.ifname];
        assert_eq!(names, ["n", "a", "eth0"]);
        assert_eq!(
            [&listed.address, &listed.server, &listed.netns],
            ["10.0.0.5", "10.0.0.1", "/run/netns/x"]
        );
        store.remove(&key("a")).unwrap();
        store.remove(&key("a")).unwrap();
        assert!(store.load().unwrap().is_empty());
    }
}

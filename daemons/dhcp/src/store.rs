//! The leases on the disk: one state file for each, which is complete or absent.
//!
//! The folder is beside the socket, in /run. A reboot ends all containers, so nothing needs to survive it; should the folder
//! survive nevertheless, the boot ID tells.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ferrule_daemon::log;
use ferrule_dhcp::wire::{Key, lease_dir, lease_file};
use ferrule_kernel::file;
use serde::{Deserialize, Serialize};

use crate::binding::{Binding, Id};
use crate::link::Interface;

/// The name of a pending file. No lease has it: container IDs begin with a letter or digit.
const PENDING: &str = ".pending";

/// The version of the format.
const FORMAT: u32 = 1;

/// The state of a lease, as far as its file keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredLease {
    pub(crate) key: Key,
    // The name of the file's first format.
    #[serde(rename = "sandbox")]
    pub(crate) interface: Interface,
    #[serde(flatten)]
    pub(crate) binding: Binding,
    /// False while the server's acknowledgement is awaited.
    pub(crate) confirmed: bool,
}

impl StoredLease {
    pub(crate) fn id(&self) -> Id {
        Id { key: self.key.clone(), family: self.binding.family() }
    }
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
    pub(crate) fn write(&self, state: &StoredLease) -> io::Result<()> {
        let content = Content { format: FORMAT, boot_id: self.boot_id.clone(), state };
        let pending = lease_dir(&self.socket).join(PENDING);
        file::replace(&self.path(&state.id()), &pending, 0o600, &serde_json::to_vec_pretty(&content)?)
    }

    fn path(&self, id: &Id) -> PathBuf {
        lease_file(&self.socket, &id.key, id.family)
    }

    /// The state of a lease, if it exists.
    pub(crate) fn find(&self, id: &Id) -> io::Result<Option<StoredLease>> {
        match file::read(&self.path(id)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => Ok(Some(serde_json::from_slice::<Content<StoredLease>>(&text?)?.state)),
        }
    }

    /// Removes the file of a lease, if there is one.
    pub(crate) fn remove(&self, id: &Id) -> io::Result<()> {
        remove(&self.path(id))
    }

    /// The leases of this boot. Removes all other files: no container of another boot exists. Names other objects
    /// and files that cannot be read, and passes them over.
    pub(crate) fn list(&self) -> io::Result<Vec<StoredLease>> {
        let mut states = Vec::new();
        for entry in fs::read_dir(lease_dir(&self.socket))? {
            let path = entry?.path();
            // The file that a pending one should have replaced is still there.
            if path.ends_with(PENDING) {
                if let Err(error) = remove(&path) {
                    log!("{}: stays: {error}", path.display());
                }
                continue;
            }
            let content = match file::read(&path) {
                Ok(bytes) => serde_json::from_slice::<Content<StoredLease>>(&bytes),
                Err(error) => {
                    log!("{}: passed over: {error}", path.display());
                    continue;
                }
            };
            let why = match content {
                Ok(content) if content.format != FORMAT || content.boot_id != self.boot_id => {
                    "of another boot or version".to_owned()
                }
                Ok(content) if self.path(&content.state.id()) != path => {
                    "it has the name of another lease".to_owned()
                }
                Ok(content) => {
                    states.push(content.state);
                    continue;
                }
                Err(error) => error.to_string(),
            };
            let outcome =
                remove(&path).map_or_else(|error| format!("stays: {error}"), |()| "removed".to_owned());
            log!("{}: {outcome}: {why}", path.display());
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
    use std::ffi::OsStr;
    use std::fs::File;
    use std::net::Ipv4Addr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use ferrule_dhcp::wire::Family;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    use nix::unistd::mkfifo;
    use serde_json::json;

    use super::*;
    use crate::lease::{Guarantor, Lease};
    use crate::v6;

    /// A state file of IPv4 as it was before there was another family.
    #[test]
    fn old_files_stay_readable() {
        let old = json!({
            "format": 1, "boot_id": "b",
            "key": {"network": "n", "containerId": "a", "ifname": "eth0"},
            "sandbox": {"path": "/run/netns/x", "identity": [4, 5], "ifname": "eth0", "index": 2, "mac": [2, 0, 0, 0, 0, 1]},
            "client": {"mac": [2, 0, 0, 0, 0, 1], "id": [0, 97], "options": {"provide": [], "request": [1], "broadcast": false}},
            "confirmed": true,
            "lease": {
                "address": "10.0.0.5", "prefix": 24, "server": "10.0.0.1", "server_mac": [2, 2, 2, 2, 2, 2],
                "renew_at": 1, "rebind_at": 2, "expires_at": u64::MAX,
                "settings": {
                    "address": "10.0.0.5/24", "gateway": null, "routes": [], "nameservers": [], "domain": "", "search": [],
                    "mtu": 0, "ntp": []
                }
            }
        });
        let read: Content<StoredLease> = serde_json::from_value(old.clone()).unwrap();
        assert_eq!(read.state.id().family, Family::Ipv4);
        // An older daemon reads the new one.
        assert_eq!(serde_json::to_value(read).unwrap(), old);
    }

    #[test]
    fn both_families_of_an_attachment_have_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dhcp.sock");
        let store = Store::open(&socket, "b".to_owned()).unwrap();
        let key = Key { network: "n".to_owned(), container_id: "a".to_owned(), ifname: "eth0".to_owned() };
        let client = v6::message::Client::new(&key, true);
        let lease = v6::lease::Lease {
            address: "fd00::5".parse().unwrap(),
            server: client.duid.clone(),
            renew_at: 1,
            rebind_at: 2,
            expires_at: u64::MAX,
            guarantor: Some(Guarantor::next(None, &client.duid, 9, 0)),
            settings: Default::default(),
        };
        let interface = Interface {
            path: "/run/netns/x".into(),
            identity: (4, 5),
            ifname: "eth0".to_owned(),
            index: 2,
            mac: [2, 0, 0, 0, 0, 1],
        };
        let state = StoredLease { key, interface, binding: Binding::V6 { client, lease }, confirmed: false };
        store.write(&state).unwrap();
        let found = store.find(&state.id()).unwrap().unwrap();
        assert_eq!((&found.binding, found.id()), (&state.binding, state.id()));
        assert!(store.find(&Id { family: Family::Ipv4, ..state.id() }).unwrap().is_none());
        let [listed] = ferrule_dhcp::list::list(&socket).try_into().unwrap();
        assert_eq!((listed.address.as_str(), &listed.server[..6]), ("fd00::5", "00:04:"));
        store.remove(&Id { family: Family::Ipv4, ..state.id() }).unwrap();
        assert_eq!(store.list().unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_file_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dhcp.sock");
        let store = Store::open(&socket, "b".to_owned()).unwrap();
        let path = |name: &str| lease_dir(&socket).join(name);
        fs::create_dir_all(path("folder/full")).unwrap();
        fs::create_dir(path(PENDING)).unwrap();
        fs::write(dir.path().join("target"), "secret").unwrap();
        symlink(dir.path().join("target"), path("link")).unwrap();
        symlink(dir.path().join("nowhere"), path("dangling")).unwrap();
        mkfifo(&path("fifo"), Mode::S_IRWXU).unwrap();
        File::create(path("sparse")).unwrap().set_len(10 << 30).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        let zero = makedev(1, 5);
        mknod(&path("device"), SFlag::S_IFCHR, Mode::S_IRWXU, zero).unwrap();
        let odd = lease_dir(&socket).join(OsStr::from_bytes(b"\xff\n"));
        fs::write(&odd, "{").unwrap();
        let kept = ["folder/full", PENDING, "link", "dangling", "fifo", "sparse", "socket", "device"];
        assert!(store.list().unwrap().is_empty() && ferrule_dhcp::list::list(&socket).is_empty());
        for name in kept {
            assert!(path(name).symlink_metadata().is_ok(), "{name}");
        }
        assert!(!odd.exists(), "a file without a lease");
        assert_eq!(fs::read(dir.path().join("target")).unwrap(), b"secret");
    }

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
            guarantor: Some(Guarantor::next(None, &Ipv4Addr::new(10, 0, 0, 2), 9, 0)),
            settings: Default::default(),
        };
        let state = |id| StoredLease {
            key: key(id),
            interface: interface.clone(),
            binding: Binding::V4 { client: client.clone(), lease: lease.clone() },
            confirmed: true,
        };
        store.write(&state("a")).unwrap();
        let other = Store::open(&socket, "another".to_owned()).unwrap();
        other.write(&state("b")).unwrap();
        fs::write(lease_dir(&socket).join("broken"), "{").unwrap();
        // Two tasks for one lease.
        fs::copy(lease_file(&socket, &key("a"), Family::Ipv4), lease_dir(&socket).join("copy")).unwrap();
        fs::copy(lease_file(&socket, &key("a"), Family::Ipv4), lease_dir(&socket).join(PENDING)).unwrap();
        let states = store.list().unwrap();
        assert_eq!(states.len(), 1);
        let binding = Binding::V4 { client, lease };
        assert_eq!((&states[0].key, &states[0].binding), (&key("a"), &binding));
        assert_eq!(fs::read_dir(lease_dir(&socket)).unwrap().count(), 1);
        let [listed] = ferrule_dhcp::list::list(&socket).try_into().unwrap();
        assert_eq!(listed.key, key("a"));
        assert_eq!(
            [&listed.address, &listed.server, &listed.netns],
            ["10.0.0.5", "10.0.0.1", "/run/netns/x"]
        );
        let id = Id { key: key("a"), family: Family::Ipv4 };
        store.remove(&id).unwrap();
        store.remove(&id).unwrap();
        assert!(store.list().unwrap().is_empty());
    }
}

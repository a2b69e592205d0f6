//! The folder of a network: one file per reserved address, and the address that was given away last.
//!
//! It is the reference's, byte by byte, and programs of both kinds take turns on it. The reference walks through all of it
//! and takes any file for a reservation that holds what it looks for, so nothing else may lie there. Only files
//! that are named as an address is written are reservations here.

use std::cell::OnceCell;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cni_common::lock::Lock;
use cni_common::spec::{CniError, Code};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::boot::Boot;
use super::draft::Draft;
use super::owner::{Holder, Owner};

/// More than any container ID and interface name can fill.
const LONGEST_CONTENT: u64 = 8192;

/// The store of one network.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    boot: OnceCell<Boot>,
}

impl Store {
    /// The store in the folder `dir`, whether there is one or not.
    pub fn new(dir: PathBuf) -> Self {
        Store { dir, boot: OnceCell::new() }
    }

    /// Takes the store's lock, the same that the reference takes. The folder must exist.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub fn lock(&self) -> Result<Lock, CniError> {
        // The reference's mode, executable for no reason.
        Lock::take(&self.dir.join("lock"), 0o750)
    }

    /// Whether the folder is there. What is no folder holds no reservations either.
    pub fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    /// Makes the folder, and those above it.
    ///
    /// # Errors
    /// Code 5.
    pub fn create(&self) -> Result<(), CniError> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.dir);
        made.map_err(|error| failed("create", &self.dir, &error))
    }

    fn path(&self, ip: IpAddr) -> PathBuf {
        self.dir.join(ip.to_string())
    }

    fn boot(&self) -> &Boot {
        self.boot.get_or_init(Boot::current)
    }

    /// Writes down a reservation for `owner`, of which only the address is still open.
    ///
    /// # Errors
    /// Code 5.
    pub fn draft(&self, owner: &Owner<'_>) -> Result<Draft, CniError> {
        let draft = Draft::new(&self.dir, &owner.content())
            .map_err(|error| failed("write a reservation in", &self.dir, &error))?;
        self.boot().mark(&draft);
        Ok(draft)
    }

    /// Reserves `ip`; `false` if it is taken.
    ///
    /// # Errors
    /// Code 5.
    pub fn reserve(&self, draft: &mut Draft, ip: IpAddr) -> Result<bool, CniError> {
        let path = self.path(ip);
        draft.publish(&path).map_err(|error| failed("create", &path, &error))
    }

    /// Gives `ip` back; it is fine if that has happened already.
    ///
    /// # Errors
    /// Code 5 with the file's name.
    pub fn release(&self, ip: IpAddr) -> Result<(), CniError> {
        let path = self.path(ip);
        remove(&path).map_err(|error| failed("remove", &path, &error))
    }

    /// Who holds `ip`; `None` if nobody does, or if it cannot be told, which the reference passes over as well.
    pub fn holder(&self, ip: IpAddr) -> Option<Holder> {
        read(&self.path(ip)).ok().map(|(holder, _)| holder)
    }

    /// Whether `ip` was reserved before the machine last started.
    pub fn is_of_earlier_boot(&self, ip: IpAddr) -> bool {
        read(&self.path(ip)).is_ok_and(|(_, file)| self.boot().is_after(&file))
    }

    /// Every address that has a file, whatever it holds. A folder that is not there holds none.
    ///
    /// # Errors
    /// Code 5 if the folder cannot be read.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, CniError> {
        let list = || -> io::Result<Vec<IpAddr>> {
            let mut addresses = Vec::new();
            for entry in fs::read_dir(&self.dir)? {
                addresses.extend(entry?.file_name().to_str().and_then(address_of));
            }
            Ok(addresses)
        };
        match list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            outcome => outcome.map_err(|error| failed("read", &self.dir, &error)),
        }
    }

    /// Every reservation, read from its file, and whether all of them could be read.
    ///
    /// # Errors
    /// Code 5 if the folder cannot be read. A file that cannot be is passed over, as by the reference.
    pub fn scan(&self) -> Result<(Vec<(IpAddr, Holder)>, bool), CniError> {
        let mut reservations = Vec::new();
        let mut is_complete = true;
        for ip in self.addresses()? {
            match read(&self.path(ip)) {
                Ok((holder, _)) => reservations.push((ip, holder)),
                // Gone, or no regular file.
                Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {}
                Err(_) => is_complete = false,
            }
        }
        Ok((reservations, is_complete))
    }

    /// The address that the range set `set` gave away last; `None` if that is not known, which costs nothing but the
    /// turn. White space around it makes it unknown, as for the reference.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let path = self.dir.join(format!("last_reserved_ip.{set}"));
        match fs::read_to_string(path) {
            Ok(text) => text.parse().ok(),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    eprintln!("Error retrieving last reserved ip: {error}");
                }
                None
            }
        }
    }

    /// Writes down the address that the range set `set` gave away last. A crash leaves a complete file or none.
    ///
    /// # Errors
    /// Code 5.
    pub fn set_last_reserved(&self, set: usize, ip: IpAddr) -> Result<(), CniError> {
        let path = self.dir.join(format!("last_reserved_ip.{set}"));
        // Not renamed over the old one: for that, ext4 first sends the new content to the disk, which takes longer than
        // all the rest.
        let write = || {
            let mut draft = Draft::new(&self.dir, &ip.to_string())?;
            remove(&path)?;
            draft.publish(&path)
        };
        match write() {
            Ok(true) => Ok(()),
            Ok(false) => Err(failed("write", &path, &io::ErrorKind::AlreadyExists.into())),
            Err(error) => Err(failed("write", &path, &error)),
        }
    }
}

/// Removes a file, which may be gone already.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens and reads the file of an address. Only regular files: a pipe would block, a link lead elsewhere.
fn read(path: &Path) -> Result<(Holder, File), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut content = Vec::with_capacity(128);
    match (&file).take(LONGEST_CONTENT).read_to_end(&mut content) {
        Ok(_) => Ok((Holder::parse(&content), file)),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// The address that a file name is. Only as addresses are written: what else a name might mean, no plugin has made.
pub fn address_of(name: &str) -> Option<IpAddr> {
    name.parse().ok().filter(|ip: &IpAddr| ip.to_string() == name)
}

fn failed(what: &str, path: &Path, error: &io::Error) -> CniError {
    CniError::new(Code::Io, format!("failed to {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const OWNER: Owner<'_> = Owner { container_id: "c1", ifname: "eth0" };

    #[test]
    fn a_reservation_is_what_the_reference_writes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("a/net"));
        assert!(!store.exists());
        store.create().unwrap();
        let ip: IpAddr = "2001:db8::2".parse().unwrap();
        let mut draft = store.draft(&OWNER).unwrap();
        assert!(store.reserve(&mut draft, ip).unwrap());
        assert!(!store.reserve(&mut store.draft(&OWNER).unwrap(), ip).unwrap());
        let path = store.dir.join("2001:db8::2");
        assert_eq!(fs::read(&path).unwrap(), b"c1\r\neth0");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(store.holder(ip), Some(OWNER.holder()));
        assert!(!store.is_of_earlier_boot(ip));
        assert_eq!(store.scan().unwrap(), (vec![(ip, OWNER.holder())], true));
        store.release(ip).unwrap();
        store.release(ip).unwrap();
        assert_eq!(store.holder(ip), None);
    }

    #[test]
    fn only_addresses_are_reservations() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned());
        for name in ["lock", "last_reserved_ip.0", "2001:DB8::1", "10.1.2", "note"] {
            fs::write(dir.path().join(name), "c1").unwrap();
        }
        fs::create_dir(dir.path().join("10.0.0.1")).unwrap();
        std::os::unix::fs::symlink("note", dir.path().join("10.0.0.2")).unwrap();
        assert_eq!(store.scan().unwrap(), (vec![], true));
        assert_eq!(store.addresses().unwrap().len(), 2);
        assert!(!store.reserve(&mut store.draft(&OWNER).unwrap(), "10.0.0.1".parse().unwrap()).unwrap());
    }

    #[test]
    fn last_reserved() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned());
        assert_eq!(store.last_reserved(0), None);
        store.set_last_reserved(0, "10.0.0.7".parse().unwrap()).unwrap();
        assert_eq!(fs::read(dir.path().join("last_reserved_ip.0")).unwrap(), b"10.0.0.7");
        assert_eq!(store.last_reserved(0), Some("10.0.0.7".parse().unwrap()));
        fs::write(dir.path().join("last_reserved_ip.0"), "10.0.0.7\n").unwrap();
        assert_eq!(store.last_reserved(0), None);
        fs::remove_file(dir.path().join("last_reserved_ip.0")).unwrap();
        fs::create_dir(dir.path().join("last_reserved_ip.0")).unwrap();
        assert_eq!(store.set_last_reserved(0, "10.0.0.7".parse().unwrap()).unwrap_err().code, Code::Io);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

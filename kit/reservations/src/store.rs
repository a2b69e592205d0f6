//! The directory of a network: one file for each reserved address, and one for the last assigned address of
//! each range set.
//!
//! The files equal the reference's byte for byte; both programs can use the directory alternately. The
//! reference reads every file in it, and takes any file with an attachment's content for a reservation, so
//! nothing else may be stored here. This program takes only files whose name is a canonical address for
//! reservations.

use std::cell::OnceCell;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni_common::plugin::Attachment;
use cni_common::remark;
use cni_common::spec::{CniError, Code};
use ferrule_kernel::{file, lock::Lock};
use ferrule_kit::lock;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::boot::{self, Boot};
use super::owner::{Owner, address_of, content};
use super::pending::PendingFile;

/// The maximum file size that is read, in bytes. A container ID with an interface name is always shorter.
const MAX_CONTENT: u64 = 8192;

/// The store of one network.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    boot: OnceCell<Boot>,
}

/// A reserved address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The address.
    pub ip: IpAddr,
    /// Whose it is.
    pub owner: Owner,
    /// Its file.
    pub path: PathBuf,
    /// When it was reserved, as far as the file system knows.
    pub since: Option<SystemTime>,
    /// Whether the file has the mark of this plugin. The reference makes no mark, nor does this plugin on a file system
    /// without extended attributes.
    pub is_marked: bool,
    /// Whether it was reserved before the last boot: its container cannot be running.
    pub is_of_earlier_boot: bool,
    /// The file, as it was when the owner had been read.
    pub version: Version,
}

/// Tells a file from a later one of the same name, and from itself after a change. The kernel may use an inode number again, and its
/// clock for files stands still for up to 10 ms: a file that was made again has another version only if that long has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    inode: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Version {
    fn of(file: &File) -> io::Result<Version> {
        let meta = file.metadata()?;
        let (changed, modified) = ((meta.ctime(), meta.ctime_nsec()), (meta.mtime(), meta.mtime_nsec()));
        Ok(Version { inode: meta.ino(), changed, modified })
    }
}

impl Store {
    /// The store in the directory `dir`, which need not exist.
    pub fn new(dir: PathBuf) -> Self {
        Store { dir, boot: OnceCell::new() }
    }

    /// Takes the store's lock, which the reference uses too. The directory must exist.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub fn lock(&self) -> Result<Lock, CniError> {
        // The reference creates the lock file with this mode.
        lock::take(&self.dir.join("lock"), 0o750)
    }

    /// Whether the directory exists.
    pub fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    /// Creates the directory and its parents.
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

    /// The kernel's ID of this boot.
    pub fn boot_id(&self) -> &str {
        self.boot().id()
    }

    fn boot(&self) -> &Boot {
        self.boot.get_or_init(Boot::current)
    }

    /// Writes the content of a reservation of the attachment; [`Store::reserve`] gives it its address.
    ///
    /// # Errors
    /// Code 5.
    pub fn pending_file(&self, attachment: &Attachment<'_>) -> Result<PendingFile, CniError> {
        let pending = PendingFile::new(&self.dir, &content(attachment))
            .map_err(|error| failed("write a reservation in", &self.dir, &error))?;
        self.boot().mark(&pending.file);
        Ok(pending)
    }

    /// Reserves `ip` by giving the pending file its name. Returns false if `ip` is taken.
    ///
    /// # Errors
    /// Code 5.
    pub fn reserve(&self, pending: &mut PendingFile, ip: IpAddr) -> Result<bool, CniError> {
        let path = self.path(ip);
        pending.publish(&path).map_err(|error| failed("create", &path, &error))
    }

    /// Releases `ip`. A missing file is success.
    ///
    /// # Errors
    /// Code 5 with the file's name.
    pub fn release(&self, ip: IpAddr) -> Result<(), CniError> {
        let path = self.path(ip);
        remove(&path).map_err(|error| failed("remove", &path, &error))
    }

    /// Releases an address if its file has not changed since it was listed. Returns whether it has. The store must be locked.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub fn release_unchanged(&self, reserved: &Reserved) -> Result<bool, CniError> {
        let Ok((owner, file)) = read(&self.path(reserved.ip)) else { return Ok(false) };
        if owner != reserved.owner || Version::of(&file).ok() != Some(reserved.version) {
            return Ok(false);
        }
        self.release(reserved.ip).map(|()| true)
    }

    /// The owner of `ip`; `None` if its file is missing or cannot be read. The reference ignores unreadable
    /// files too.
    pub fn owner(&self, ip: IpAddr) -> Option<Owner> {
        read(&self.path(ip)).ok().map(|(owner, _)| owner)
    }

    /// Whether `ip` was reserved before the last boot.
    pub fn is_of_earlier_boot(&self, ip: IpAddr) -> bool {
        read(&self.path(ip)).is_ok_and(|(_, file)| self.boot().is_after(&file))
    }

    /// All reservations with what their files tell, for the operator's tool. A missing directory has none.
    ///
    /// # Errors
    /// Code 5 if the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Reserved>, CniError> {
        let reserved = |ip| {
            let path = self.path(ip);
            let (owner, file) = read(&path).ok()?;
            let since = file.metadata().and_then(|meta| meta.modified()).ok();
            let version = Version::of(&file).ok()?;
            let (is_marked, is_of_earlier_boot) = (boot::is_marked(&file), self.boot().is_after(&file));
            Some(Reserved { ip, owner, since, is_marked, is_of_earlier_boot, path, version })
        };
        Ok(self.addresses()?.into_iter().filter_map(reserved).collect())
    }

    /// All addresses that have a file of any content. A missing directory has none.
    ///
    /// # Errors
    /// Code 5 if the directory cannot be read.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, CniError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.and_then(Iterator::collect::<io::Result<Vec<_>>>),
        };
        let entries = entries.map_err(|error| failed("read", &self.dir, &error))?;
        Ok(entries.iter().filter_map(|entry| address_of(entry.file_name().to_str()?)).collect())
    }

    /// Reads all reservations. The flag is false if a file could not be read; the reference ignores such
    /// files too.
    ///
    /// # Errors
    /// Code 5 if the directory cannot be read.
    pub fn scan(&self) -> Result<(Vec<(IpAddr, Owner)>, bool), CniError> {
        let mut reservations = Vec::new();
        let mut is_complete = true;
        for ip in self.addresses()? {
            match read(&self.path(ip)) {
                Ok((owner, _)) => reservations.push((ip, owner)),
                // Removed since, or not a regular file.
                Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {}
                Err(_) => is_complete = false,
            }
        }
        Ok((reservations, is_complete))
    }

    /// The last address that the range set `set` assigned; `None` if it is unknown, which only restarts the
    /// round robin. Like the reference, does not parse an address with white space around it.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let path = self.dir.join(format!("last_reserved_ip.{set}"));
        match file::read_text(&path) {
            Ok(text) => text.parse().ok(),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    remark!("Error retrieving last reserved ip: {error}");
                }
                None
            }
        }
    }

    /// Stores the last address that the range set `set` assigned. A crash leaves a complete file or none.
    ///
    /// # Errors
    /// Code 5.
    pub fn set_last_reserved(&self, set: usize, ip: IpAddr) -> Result<(), CniError> {
        let path = self.dir.join(format!("last_reserved_ip.{set}"));
        // Not rename(2) over the old file: ext4 would first write the new content to disk, which takes longer
        // than the rest of ADD.
        let write = || {
            let mut pending = PendingFile::new(&self.dir, &ip.to_string())?;
            remove(&path)?;
            pending.publish(&path)
        };
        match write() {
            Ok(true) => Ok(()),
            Ok(false) => Err(failed("write", &path, &io::ErrorKind::AlreadyExists.into())),
            Err(error) => Err(failed("write", &path, &error)),
        }
    }
}

/// Removes a file. A missing file is success.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens and reads the file of an address. Reads regular files only: a FIFO would block, a symbolic link
/// could lead outside the store.
fn read(path: &Path) -> Result<(Owner, File), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut content = Vec::with_capacity(128);
    match (&file).take(MAX_CONTENT).read_to_end(&mut content) {
        Ok(_) => Ok((Owner::parse(&content), file)),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> CniError {
    CniError::new(Code::Io, format!("failed to {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const OWNER: Attachment<'_> = Attachment { network: "net", container_id: "c1", ifname: "eth0" };

    #[test]
    fn reservation_equals_the_references() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("a/net"));
        assert!(!store.exists());
        store.create().unwrap();
        let ip: IpAddr = "2001:db8::2".parse().unwrap();
        let mut pending = store.pending_file(&OWNER).unwrap();
        assert!(store.reserve(&mut pending, ip).unwrap());
        assert!(!store.reserve(&mut store.pending_file(&OWNER).unwrap(), ip).unwrap());
        let path = store.dir.join("2001:db8::2");
        assert_eq!(fs::read(&path).unwrap(), b"c1\r\neth0");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(store.owner(ip), Some(Owner::of(&OWNER)));
        assert!(!store.is_of_earlier_boot(ip));
        assert_eq!(store.scan().unwrap(), (vec![(ip, Owner::of(&OWNER))], true));
        store.release(ip).unwrap();
        store.release(ip).unwrap();
        assert_eq!(store.owner(ip), None);
    }

    #[test]
    fn only_files_named_after_addresses_are_reservations() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned());
        for name in ["lock", "last_reserved_ip.0", "2001:DB8::1", "10.1.2", "note"] {
            fs::write(dir.path().join(name), "c1").unwrap();
        }
        fs::create_dir(dir.path().join("10.0.0.1")).unwrap();
        std::os::unix::fs::symlink("note", dir.path().join("10.0.0.2")).unwrap();
        assert_eq!(store.scan().unwrap(), (vec![], true));
        assert_eq!(store.addresses().unwrap().len(), 2);
        assert!(
            !store.reserve(&mut store.pending_file(&OWNER).unwrap(), "10.0.0.1".parse().unwrap()).unwrap()
        );
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

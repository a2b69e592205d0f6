//! An index from attachments to their addresses, which saves reading all reservations. It lies beside the
//! stores, where the reference does not look.
//!
//! `<dataDir>/.ferrule/<network>/` holds one symbolic link for each attachment, `<container ID>:<ifname>`.
//! Its target lists the addresses. The kernel creates a symbolic link atomically and usually without a data
//! block. No network name starts with a dot. The file of an address always decides, so a wrong index entry
//! does no harm; only a missing entry would.
//!
//! The index is complete if and only if both directories have the same mtime with our marker nanoseconds: the
//! *stamp*. A call that knows all reservations sets it as its last step, with the store locked. Every
//! creation or removal of a reservation, by this program, by the reference or by hand, makes the kernel set
//! the store's mtime to the current time, which invalidates the stamp regardless of the clock's resolution.
//! Every change of the index removes the stamp from the index directory. So no order of steps matters, and a
//! crash cannot leave a wrong index: without the stamp, the next call reads the store and rebuilds the index.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

use super::owner::address_of;

/// The directory of all indexes in `dataDir`.
const DIR: &str = ".ferrule";

/// The nanoseconds of the stamp. The kernel's own times have them with a probability of one in 10^9.
const STAMP_NANOSECONDS: i64 = 271_828_182;

/// The index of one network.
#[derive(Debug)]
pub struct Index {
    dir: PathBuf,
    store: PathBuf,
}

impl Index {
    /// The index of the store `<data_dir>/<network>`. It need not exist.
    pub fn new(data_dir: &Path, network: &str) -> Self {
        Index { dir: data_dir.join(DIR).join(network), store: data_dir.join(network) }
    }

    /// Whether the index has the stamp, so that it lists every reservation.
    pub fn is_stamped(&self) -> bool {
        let time = |dir: &Path| {
            let meta = fs::symlink_metadata(dir).ok().filter(fs::Metadata::is_dir)?;
            Some((meta.mtime(), meta.mtime_nsec()))
        };
        let stamped = time(&self.dir).filter(|(_, nanoseconds)| *nanoseconds == STAMP_NANOSECONDS);
        stamped.is_some() && stamped == time(&self.store)
    }

    /// Sets the stamp: the index lists every reservation. The store must have been locked since the caller
    /// read that state.
    ///
    /// # Errors
    /// A time cannot be set. The stamp is invalid then.
    pub fn stamp(&self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
        // One second ago: even if the kernel's current time has the marker nanoseconds, it differs in the
        // seconds.
        let seconds = i64::try_from(now.as_secs()).map_err(io::Error::other)? - 1;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: STAMP_NANOSECONDS },
        };
        for dir in [&self.dir, &self.store] {
            utimensat(CWD, dir, &times, AtFlags::empty())?;
        }
        Ok(())
    }

    /// The addresses listed for `key`; empty without an entry.
    ///
    /// # Errors
    /// The entry cannot be read or is invalid. The caller must read the store then.
    pub fn get(&self, key: &str) -> io::Result<Vec<IpAddr>> {
        let target = match fs::read_link(self.dir.join(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            outcome => outcome?,
        };
        let addresses = target.to_str().map(|text| text.split(',').map(address_of).collect());
        addresses.flatten().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Lists `addresses` for `key`. An empty list removes the entry.
    pub fn put(&self, key: &str, addresses: &[IpAddr]) -> io::Result<()> {
        let path = self.dir.join(key);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if addresses.is_empty() { Ok(()) } else { symlink(target(addresses), path) }
    }

    /// Makes the index list exactly `entries`. Writes only the entries that differ.
    pub fn rebuild(&self, entries: &BTreeMap<String, Vec<IpAddr>>) -> io::Result<()> {
        let mut missing: BTreeMap<&str, &[IpAddr]> =
            entries.iter().map(|(key, list)| (key.as_str(), list.as_slice())).collect();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let path = self.dir.join(&name);
            let wanted = name.to_str().and_then(|name| missing.get(name));
            let is_right = wanted.is_some_and(|list| {
                fs::read_link(&path).is_ok_and(|is| is.as_os_str() == target(list).as_str())
            });
            match name.to_str() {
                Some(name) if is_right => drop(missing.remove(name)),
                _ => fs::remove_file(path)?,
            }
        }
        missing.into_iter().try_for_each(|(key, list)| symlink(target(list), self.dir.join(key)))
    }

    /// Whether the index exists, stamped or not.
    pub fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    /// Creates an empty index. Only its owner can read it.
    pub fn create(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)
    }
}

fn target(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn new() -> (tempfile::TempDir, Index) {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::new(dir.path(), "net");
        fs::create_dir(dir.path().join("net")).unwrap();
        index.create().unwrap();
        (dir, index)
    }

    #[test]
    fn entries() {
        let (dir, index) = new();
        assert!(index.get("c1:eth0").unwrap().is_empty());
        index.put("c1:eth0", &ips(&["10.0.0.2", "fd00::2"])).unwrap();
        index.put("c1:eth0", &ips(&["10.0.0.3", "fd00::3"])).unwrap();
        assert_eq!(index.get("c1:eth0").unwrap(), ips(&["10.0.0.3", "fd00::3"]));
        index.put("c1:eth0", &[]).unwrap();
        index.put("c1:eth0", &[]).unwrap();
        assert!(index.get("c1:eth0").unwrap().is_empty());
        symlink("../../etc/passwd", dir.path().join(".ferrule/net/c2:eth0")).unwrap();
        assert!(index.get("c2:eth0").is_err());
        fs::write(dir.path().join(".ferrule/net/c3:eth0"), "10.0.0.2").unwrap();
        assert!(index.get("c3:eth0").is_err());
        assert!(index.put(&"x".repeat(300), &ips(&["10.0.0.2"])).is_err());
    }

    #[test]
    fn rebuilt_index_lists_exactly_the_entries() {
        let (dir, index) = new();
        let entries: BTreeMap<String, Vec<IpAddr>> =
            [("a:e".to_owned(), ips(&["10.0.0.2"])), ("b".to_owned(), ips(&["10.0.0.3", "fd00::3"]))].into();
        index.put("a:e", &ips(&["10.0.0.9"])).unwrap();
        index.put("c:e", &ips(&["10.0.0.4"])).unwrap();
        fs::write(dir.path().join(".ferrule/net/junk"), "").unwrap();
        index.rebuild(&entries).unwrap();
        index.rebuild(&entries).unwrap();
        assert_eq!(index.get("a:e").unwrap(), ips(&["10.0.0.2"]));
        assert_eq!(index.get("b").unwrap(), ips(&["10.0.0.3", "fd00::3"]));
        assert_eq!(fs::read_dir(dir.path().join(".ferrule/net")).unwrap().count(), 2);
    }

    /// Every change of either directory invalidates the stamp, even if it follows within the same clock tick.
    #[test]
    fn every_change_invalidates_the_stamp() {
        let (dir, index) = new();
        let file = dir.path().join("net/10.0.0.2");
        assert!(!index.is_stamped());
        for round in 0..200 {
            index.stamp().unwrap();
            assert!(index.is_stamped());
            match round % 4 {
                0 => drop(File::create(&file).unwrap()),
                1 => fs::remove_file(&file).unwrap(),
                2 => index.put("a:e", &ips(&["10.0.0.2"])).unwrap(),
                _ => index.put("a:e", &[]).unwrap(),
            }
            assert!(!index.is_stamped(), "round {round}");
        }
        index.stamp().unwrap();
        fs::remove_dir(dir.path().join("net")).unwrap();
        assert!(!index.is_stamped());
        fs::create_dir(dir.path().join("net")).unwrap();
        assert!(!index.is_stamped());
    }

    /// A crash between the two steps of stamping leaves no stamp; neither do equal mtimes that the kernel
    /// set.
    #[test]
    fn one_stamped_directory_is_not_enough() {
        let (dir, index) = new();
        let store = File::open(dir.path().join("net")).unwrap();
        index.stamp().unwrap();
        store.set_modified(SystemTime::now()).unwrap();
        assert!(!index.is_stamped());
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
        store.set_modified(now).unwrap();
        File::open(dir.path().join(".ferrule/net")).unwrap().set_modified(now).unwrap();
        assert!(!index.is_stamped());
    }
}

//! Which addresses an attachment has, without reading all reservations: beside the stores, out of the reference's sight.
//!
//! `<dataDir>/.ferrule/<network>/` holds a symbolic link per attachment, `<container ID>:<ifname>`, whose target lists the
//! addresses. (A link is made in one step, complete, and needs no block on the disk. No network has a name that starts
//! with a dot.) Nothing is believed because it is in the index: the file of the address decides. So an entry too
//! many does no harm, and only one that is missing would.
//!
//! None is missing while both folders carry the *seal*: the same time of last change, one that the kernel does not set by
//! itself, put there as the last act of a command that knew all reservations, with the store locked. Whoever adds a
//! reservation, this program, the reference or a hand, makes the kernel set the store's time to now, however soon
//! after and however coarse its clock; whoever changes the index breaks the seal on that side. Hence there is no order of
//! steps to keep, nothing to be torn by a crash, and no state that could be wrong: without the seal the store is read,
//! and the index made anew.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

use super::store::address_of;

/// The folder of all indexes in `dataDir`.
const DIR: &str = ".ferrule";

/// The nanoseconds of a seal's time. The kernel's own times hit them once in a thousand million.
const SEAL: i64 = 271_828_182;

/// The index of one network.
#[derive(Debug)]
pub struct Index {
    dir: PathBuf,
    store: PathBuf,
}

impl Index {
    /// The index of the store `<data_dir>/<network>`, whether there is one or not.
    pub fn new(data_dir: &Path, network: &str) -> Self {
        Index { dir: data_dir.join(DIR).join(network), store: data_dir.join(network) }
    }

    /// Whether the index knows every reservation.
    pub fn is_sealed(&self) -> bool {
        let time = |dir: &Path| {
            let meta = fs::symlink_metadata(dir).ok().filter(fs::Metadata::is_dir)?;
            Some((meta.mtime(), meta.mtime_nsec()))
        };
        let sealed = time(&self.dir).filter(|(_, nanoseconds)| *nanoseconds == SEAL);
        sealed.is_some() && sealed == time(&self.store)
    }

    /// Declares that the index knows every reservation. The store must have been locked since that was found out.
    ///
    /// # Errors
    /// Whatever keeps the times from being set; the seal is then broken.
    pub fn seal(&self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
        // One second ago: not even a tick that hits the nanoseconds is taken for the seal.
        let seconds = i64::try_from(now.as_secs()).map_err(io::Error::other)? - 1;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: SEAL },
        };
        for dir in [&self.dir, &self.store] {
            utimensat(CWD, dir, &times, AtFlags::empty())?;
        }
        Ok(())
    }

    /// The addresses listed for `key`, none if it has no entry.
    ///
    /// # Errors
    /// Whatever is no answer; the store has to be read then.
    pub fn get(&self, key: &str) -> io::Result<Vec<IpAddr>> {
        let target = match fs::read_link(self.dir.join(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            outcome => outcome?,
        };
        let addresses = target.to_str().map(|text| text.split(',').map(address_of).collect());
        addresses.flatten().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Lists `addresses` for `key`, or removes its entry if there are none.
    ///
    /// # Errors
    /// Whatever keeps the entry from being written.
    pub fn put(&self, key: &str, addresses: &[IpAddr]) -> io::Result<()> {
        let path = self.dir.join(key);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if addresses.is_empty() { Ok(()) } else { symlink(target(addresses), path) }
    }

    /// Makes the index list exactly `entries`, and writes only what differs.
    ///
    /// # Errors
    /// Whatever keeps it from being complete.
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

    /// Whether there is an index, sealed or not.
    pub fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    /// Makes an empty index, for nobody's eyes but the owner's.
    ///
    /// # Errors
    /// Whatever keeps the folder from being made.
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
    fn rebuilt_index_lists_exactly_what_is_wanted() {
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

    /// The seal does not outlive any change of either folder, however soon it comes: there is no tick to wait for.
    #[test]
    fn every_change_breaks_the_seal_at_once() {
        let (dir, index) = new();
        let file = dir.path().join("net/10.0.0.2");
        assert!(!index.is_sealed());
        for round in 0..200 {
            index.seal().unwrap();
            assert!(index.is_sealed());
            match round % 4 {
                0 => drop(File::create(&file).unwrap()),
                1 => fs::remove_file(&file).unwrap(),
                2 => index.put("a:e", &ips(&["10.0.0.2"])).unwrap(),
                _ => index.put("a:e", &[]).unwrap(),
            }
            assert!(!index.is_sealed(), "round {round}");
        }
        index.seal().unwrap();
        fs::remove_dir(dir.path().join("net")).unwrap();
        assert!(!index.is_sealed());
        fs::create_dir(dir.path().join("net")).unwrap();
        assert!(!index.is_sealed());
    }

    /// A crash between the two steps of sealing, or the kernel giving both folders the same time, is no seal.
    #[test]
    fn half_a_seal_is_none() {
        let (dir, index) = new();
        let store = File::open(dir.path().join("net")).unwrap();
        index.seal().unwrap();
        store.set_modified(SystemTime::now()).unwrap();
        assert!(!index.is_sealed());
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
        store.set_modified(now).unwrap();
        File::open(dir.path().join(".ferrule/net")).unwrap().set_modified(now).unwrap();
        assert!(!index.is_sealed());
    }
}

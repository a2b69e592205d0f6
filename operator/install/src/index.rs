//! host-local's index, `<dataDir>/.ferrule/<network>/`, which the reference does not know and would never
//! remove. It goes when another program becomes host-local.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cni_common::spec::Json;
use ferrule_kernel::file;
use ferrule_kernel::lock::Lock;

/// The plugin.
pub const PLUGIN: &str = "host-local";

/// The folder of reservations if a configuration names none.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// The index folder beside the stores.
pub const INDEX: &str = ".ferrule";

/// The folders of host-local that have an index: of the default, those that the configurations in `conf_dir` name, and
/// `more`.
pub fn list(conf_dir: &Path, more: &[PathBuf]) -> Vec<PathBuf> {
    data_dirs(conf_dir, more).into_iter().filter(|dir| dir.join(INDEX).is_dir()).collect()
}

fn data_dirs(conf_dir: &Path, more: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut dirs = BTreeSet::from([DATA_DIR.into()]);
    dirs.extend(more.iter().cloned());
    for entry in fs::read_dir(conf_dir).into_iter().flatten().flatten() {
        let text = file::read_named(&entry.path()).unwrap_or_default();
        let Ok(config) = Json::parse(&text) else { continue };
        let plugins = config.get("plugins").and_then(|plugins| plugins.decode::<Vec<Json>>().ok());
        let members =
            |plugin: &Json| plugin.get("plugins").and_then(|members| members.decode::<Vec<Json>>().ok());
        let inner: Vec<Json> = plugins.iter().flatten().filter_map(members).flatten().collect();
        dirs.extend(plugins.iter().flatten().chain(&inner).chain([&config]).filter_map(data_dir));
    }
    dirs
}

/// The folder that a plugin's configuration names.
fn data_dir(plugin: &Json) -> Option<PathBuf> {
    let ipam = plugin.get("ipam")?;
    let text = |key| ipam.get(key)?.decode::<String>().ok();
    text("dataDir")
        .filter(|dir| !dir.is_empty() && text("type").as_deref() == Some(PLUGIN))
        .map(PathBuf::from)
}

/// Removes the indexes in a folder of host-local.
///
/// # Errors
/// An entry cannot be removed, or is not of an index: then it stays. A Ferrule would build a removed index again.
pub fn remove(data_dir: &Path) -> io::Result<()> {
    let indexes = data_dir.join(INDEX);
    for entry in fs::read_dir(&indexes)? {
        let entry = entry?;
        // A call that is still running holds the lock of its network's store while it changes the index.
        let lock = data_dir.join(entry.file_name()).join("lock");
        let _lock =
            if lock.exists() { Some(Lock::take(&lock, 0o750).map_err(io::Error::other)?) } else { None };
        // Only links, and so no folder of something else.
        for link in fs::read_dir(entry.path())? {
            let link = link?;
            if link.file_type()?.is_symlink() {
                fs::remove_file(link.path())?;
            }
        }
        fs::remove_dir(entry.path())?;
    }
    fs::remove_dir(&indexes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_of_configurations() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write(
            "10.conflist",
            r#"{"plugins": [{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "/a"}}]}"#,
        );
        write("20.conf", r#"{"type": "ptp", "IPAM": {"Type": "host-local", "datadir": "/b"}}"#);
        write("30.conf", r#"{"type": "ptp", "ipam": {"type": "other", "dataDir": "/c"}}"#);
        write("40.conf", r#"{"type": "ptp", "ipam": {"type": "host-local", "dataDir": ""}}"#);
        write("50.conf", "no JSON");
        let found = data_dirs(dir.path(), &["/d".into()]);
        assert_eq!(found, ["/a", "/b", "/d", DATA_DIR].map(PathBuf::from).into());
        assert_eq!(data_dirs(Path::new("/nonexistent"), &[]), [PathBuf::from(DATA_DIR)].into());
        fs::create_dir(dir.path().join(INDEX)).unwrap();
        assert_eq!(list(dir.path(), &[dir.path().into()]), [dir.path()]);
    }

    #[test]
    fn only_an_index_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let index = dir.path().join(".ferrule/net");
        fs::create_dir_all(dir.path().join("net")).unwrap();
        fs::write(dir.path().join("net/10.0.0.2"), "c1").unwrap();
        fs::create_dir_all(&index).unwrap();
        symlink("10.0.0.2", index.join("c1:eth0")).unwrap();
        remove(dir.path()).unwrap();
        assert!(!dir.path().join(".ferrule").exists() && dir.path().join("net/10.0.0.2").exists());
        // The state folder of an installation has the same name.
        let saved = dir.path().join(".ferrule/saved");
        fs::create_dir_all(&saved).unwrap();
        fs::write(saved.join("bridge.0"), "").unwrap();
        fs::write(dir.path().join(".ferrule/manifest"), "").unwrap();
        assert!(remove(dir.path()).is_err());
        assert!(saved.join("bridge.0").exists() && dir.path().join(".ferrule/manifest").exists());
    }

    #[test]
    fn a_used_store_keeps_its_index() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["net", ".ferrule/net"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let path = dir.path().join("net/lock");
        let lock = Lock::take(&path, 0o750).unwrap();
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| remove(dir.path()));
            // /proc/locks lists a waiting process with "->".
            let is_waiting = || {
                let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap()).to_string();
                let locks = fs::read_to_string("/proc/locks").unwrap();
                locks.lines().any(|line| line.contains("->") && line.contains(&format!(":{inode} ")))
            };
            while !is_waiting() {
                std::thread::yield_now();
            }
            assert!(dir.path().join(".ferrule/net").exists());
            drop(lock);
            removal.join().unwrap().unwrap();
        });
    }
}

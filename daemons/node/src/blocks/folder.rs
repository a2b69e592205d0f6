//! The folder of the ledgers, and its identifier.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use ferrule_blocks::ledger::{Ledger, MAX_FILE, Network};
use ferrule_kernel::file;
use ferrule_kernel::lock::Lock;
use ferrule_reservations::store::Store;

/// The file with the folder's identifier, and a hash of the identifiers of the machine that has made it.
const IDENTITY: &str = ".store";

/// The folder. One daemon has it at a time.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// The identifier. Objects with it belong to these ledgers.
    pub(super) store: String,
    _lock: Lock,
}

impl Folder {
    /// Opens the folder, or makes it. On another machine than the one that has made it, as after a disk was copied, it begins anew: its
    /// ledgers are renamed.
    ///
    /// # Errors
    /// The disk's, or another daemon has the folder.
    pub(super) fn open(path: &Path, machine: &str) -> Result<Folder> {
        let name = || path.display().to_string();
        DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(name)?;
        let lock = Lock::take(&path.join(".lock"), 0o600)?;
        let identity = path.join(IDENTITY);
        let known = match file::read_text(&identity) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| identity.display().to_string()),
        };
        if let Some((store, theirs)) =
            known.as_deref().and_then(|text| text.trim_end_matches('\n').split_once(' '))
            && !store.is_empty()
            && (theirs == machine || machine.is_empty())
        {
            return Ok(Folder { path: path.to_owned(), store: store.to_owned(), _lock: lock });
        }
        if known.is_some() {
            log!("{}: the ledgers are those of another machine; they are set aside", path.display());
        }
        for ledger in ledgers(path).with_context(name)? {
            fs::rename(&ledger, ledger.with_extension("set-aside")).with_context(name)?;
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| anyhow!("no random number: {error}"))?;
        let store: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{store} {machine}\n");
        file::replace_durably(&identity, &path.join(".store.new"), 0o600, text.as_bytes())
            .with_context(name)?;
        Ok(Folder { path: path.to_owned(), store, _lock: lock })
    }

    /// The ledgers of all networks. One that cannot be read is logged, and stays closed to the plugin too.
    pub(super) fn load(&self) -> Result<Vec<Ledger>> {
        let mut found = Vec::new();
        for path in ledgers(&self.path)? {
            match read(&path) {
                Ok(ledger) if self.path_of(&ledger.network) == path => found.push(ledger),
                Ok(_) => log!("{}: it is the ledger of another network", path.display()),
                Err(error) => log!("{}: {error:#}", path.display()),
            }
        }
        Ok(found)
    }

    /// The file of a network.
    pub(super) fn path_of(&self, network: &Network) -> PathBuf {
        self.path.join(format!("{}.json", network.network))
    }
}

fn ledgers(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    Ok(entries.into_iter().filter(|path| path.extension().is_some_and(|end| end == "json")).collect())
}

fn read(path: &Path) -> Result<Ledger> {
    Ledger::parse(&file::read_up_to(path, MAX_FILE)?).map_err(|why| anyhow!(why))
}

/// A network's ledger and its file.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) ledger: Ledger,
    pub(super) path: PathBuf,
}

impl Kept {
    /// The addresses in use. ADDs go on meanwhile: what depends on them for good looks again under the lock.
    pub(super) async fn used(&self) -> Result<BTreeSet<IpAddr>> {
        let store = self.store();
        let used = tokio::task::spawn_blocking(move || store.addresses()).await?;
        Ok(used.map_err(|error| anyhow!(error.msg))?.into_iter().collect())
    }

    fn store(&self) -> Store {
        let network = &self.ledger.network;
        Store::new(network.data_dir.join(&network.network))
    }

    /// Takes the lock of the network's store, and lets `work` change the ledger: it gets the addresses in use. When this returns, the
    /// changes are on the disk. After an error the ledger is as it is there.
    pub(super) async fn change<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Ledger, &BTreeSet<IpAddr>) -> T + Send + 'static,
    ) -> Result<T> {
        let mut kept = self.clone();
        let changed = tokio::task::spawn_blocking(move || {
            let outcome = kept.locked(work);
            (kept, outcome)
        });
        let (kept, outcome) = changed.await?;
        *self = kept;
        outcome
    }

    fn locked<T>(&mut self, work: impl FnOnce(&mut Ledger, &BTreeSet<IpAddr>) -> T) -> Result<T> {
        let store = self.store();
        store.create().map_err(|error| anyhow!(error.msg))?;
        let _lock = store.lock().map_err(|error| anyhow!(error.msg))?;
        let used = store.addresses().map_err(|error| anyhow!(error.msg))?.into_iter().collect();
        let former = self.ledger.clone();
        let outcome = work(&mut self.ledger, &used);
        if self.ledger != former {
            let pending = self.path.with_extension("new");
            let written = file::replace_durably(&self.path, &pending, 0o600, &self.ledger.to_text());
            if let Err(error) = written {
                // The last step may have been done.
                self.ledger = read(&self.path).unwrap_or(former);
                return Err(error).with_context(|| self.path.display().to_string());
            }
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let (network, domain) = ("net".to_owned(), "lan".to_owned());
        Ledger::new(Network { network, domain, data_dir: "/stores".into(), sets: Vec::new(), link: None })
    }

    #[test]
    fn the_identifier_stays_on_one_machine() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let first = Folder::open(&path, "machine").unwrap().store;
        fs::write(path.join("net.json"), ledger().to_text()).unwrap();
        let again = Folder::open(&path, "machine").unwrap();
        assert_eq!((&again.store, again.load().unwrap().len()), (&first, 1));
        drop(again);
        let copied = Folder::open(&path, "other").unwrap();
        assert_ne!(copied.store, first);
        assert!(copied.load().unwrap().is_empty() && path.join("net.set-aside").exists());
        let [first, again] = [(); 2].map(|()| Folder::open(&dir.path().join("unknown"), "").unwrap().store);
        assert_eq!(first, again, "a machine without identifiers");
    }

    #[test]
    fn ledgers_that_are_none_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), "machine").unwrap();
        for (name, text) in [("a.json", &b"{"[..]), ("b.json", &ledger().to_text())] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        fs::create_dir(dir.path().join("c.json")).unwrap();
        assert!(folder.load().unwrap().is_empty());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5, "with .store and .lock");
    }
}

//! The folder of the records: a folder for each pod, and in it a file for each claim, `POD_UID/CLAIM_UID.json`. A file is complete or
//! absent, also after a loss of power.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ferrule_kernel::file;

use super::record::Record;
use super::{DATA, RECORDS, is_uid};

/// The end of a record's name.
const JSON: &str = ".json";
/// The most bytes of a file that is read.
const MAX_BYTES: u64 = 4 << 20;
/// The most records of a pod.
const MAX_CLAIMS: usize = 256;

/// The folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

impl Default for Folder {
    fn default() -> Self {
        Folder::in_data(Path::new(DATA))
    }
}

impl Folder {
    /// The folder at this path, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Folder(path.into())
    }

    /// The folder below [`DATA`], or below another folder in its place.
    pub fn in_data(data: &Path) -> Self {
        Folder(data.join(RECORDS))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The records of a pod, in the order of the claims' names. Empty if it has none.
    ///
    /// # Errors
    /// One cannot be read, or is invalid.
    pub fn of_pod(&self, pod_uid: &str) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for claim in self.claims_of(pod_uid)? {
            records.extend(self.read(pod_uid, &claim)?);
        }
        records.sort_by(|a, b| (&a.claim.name, &a.claim.uid).cmp(&(&b.claim.name, &b.claim.uid)));
        Ok(records)
    }

    /// The UIDs of the claims that the pod has records of.
    ///
    /// # Errors
    /// The folder cannot be listed, or has too many files.
    pub fn claims_of(&self, pod_uid: &str) -> io::Result<Vec<String>> {
        let folder = self.pod(pod_uid)?;
        let uid = |name: String| name.strip_suffix(JSON).filter(|uid| is_uid(uid)).map(str::to_owned);
        let claims: Vec<String> = names(&folder)?.filter_map(uid).take(MAX_CLAIMS + 1).collect();
        match claims.len() > MAX_CLAIMS {
            true => Err(invalid(&folder, &format!("more than {MAX_CLAIMS} records"))),
            false => Ok(claims),
        }
    }

    /// The UIDs of all pods that have a folder.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn pods(&self) -> io::Result<Vec<String>> {
        Ok(names(&self.0)?.filter(|name| is_uid(name) && self.is_folder(name)).collect())
    }

    /// What lies beside the folders of the pods, and is none: passed over.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn strays(&self) -> io::Result<Vec<PathBuf>> {
        let is_stray = |name: &String| !is_uid(name) || !self.is_folder(name);
        Ok(names(&self.0)?.filter(is_stray).map(|name| self.0.join(name)).collect())
    }

    /// Not behind a link.
    fn is_folder(&self, name: &str) -> bool {
        fs::symlink_metadata(self.0.join(name)).is_ok_and(|metadata| metadata.is_dir())
    }

    /// The record of a claim for a pod; `None` without a file.
    ///
    /// # Errors
    /// It cannot be read, or is invalid.
    pub fn read(&self, pod_uid: &str, claim_uid: &str) -> io::Result<Option<Record>> {
        let path = self.file(pod_uid, claim_uid)?;
        let Some(bytes) = read_file(&path)? else { return Ok(None) };
        let record = Record::parse(&bytes).map_err(|why| invalid(&path, &why))?;
        match record.pod.uid == pod_uid && record.claim.uid == claim_uid {
            true => Ok(Some(record)),
            false => Err(invalid(&path, "it is of another pod or claim")),
        }
    }

    /// Waits for other writers: another instance of the driver, or gc. Makes the folder.
    ///
    /// # Errors
    /// It cannot be made or locked.
    pub fn lock(&self) -> io::Result<Locked<'_>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        Ok(Locked { folder: self, _lock: lock(&self.0)? })
    }

    fn pod(&self, uid: &str) -> io::Result<PathBuf> {
        check(uid).map(|()| self.0.join(uid))
    }

    fn file(&self, pod_uid: &str, claim_uid: &str) -> io::Result<PathBuf> {
        check(claim_uid)?;
        Ok(self.pod(pod_uid)?.join(format!("{claim_uid}{JSON}")))
    }
}

/// The folder, locked for the only writer.
pub struct Locked<'f> {
    folder: &'f Folder,
    _lock: File,
}

impl Deref for Locked<'_> {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        self.folder
    }
}

impl Locked<'_> {
    /// Writes or replaces the record of its claim and pod.
    ///
    /// # Errors
    /// It is invalid, or cannot be written: the former one stays.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let path = self.file(&record.pod.uid, &record.claim.uid)?;
        let bytes = record.to_bytes().map_err(|why| invalid(&path, &why))?;
        let folder = self.pod(&record.pod.uid)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let pending = folder.join(format!("{}{}", pending_of(&record.claim.uid), std::process::id()));
        file::replace_durably(&path, &pending, 0o600, &bytes)?;
        sync(&self.folder.0)
    }

    /// Removes the record of a claim for a pod, and what killed writes have left of it. Returns whether there was one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, pod_uid: &str, claim_uid: &str) -> io::Result<bool> {
        let folder = self.pod(pod_uid)?;
        let record = self.file(pod_uid, claim_uid)?;
        let pending = pending_of(claim_uid);
        let mut is_change = false;
        for name in names(&folder)?.filter(|name| name.starts_with(&pending)) {
            is_change = true;
            fs::remove_file(folder.join(name))?;
        }
        let was_there = match fs::remove_file(record) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            outcome => outcome.map(|()| true)?,
        };
        match fs::remove_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                if is_change || was_there {
                    sync(&folder)?;
                }
            }
            outcome => absent_is_fine(outcome).and_then(|()| sync(&self.folder.0))?,
        }
        Ok(was_there)
    }
}

/// Locks a folder, which must exist. The lock ends with the value.
///
/// # Errors
/// It cannot be opened or locked.
pub fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    file.lock().map(|()| file)
}

/// The content of a regular file of at most 4 MiB; `None` if it does not exist.
///
/// # Errors
/// It cannot be read, or is longer.
pub fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match file::read_up_to(path, MAX_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        Ok(bytes) => Ok(Some(bytes)),
    }
}

/// Begins the names of files that become the record of this claim.
fn pending_of(claim_uid: &str) -> String {
    format!(".{claim_uid}.")
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The names in a folder; none if it does not exist, or is something else.
fn names(folder: &Path) -> io::Result<impl Iterator<Item = String> + use<>> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let entries = match fs::read_dir(folder) {
        Err(error) if [NotFound, NotADirectory].contains(&error.kind()) => None,
        Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display()))),
        Ok(entries) => Some(entries),
    };
    Ok(entries.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok()))
}

fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn check(uid: &str) -> io::Result<()> {
    match is_uid(uid) {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{uid:?} is no UID"))),
    }
}

fn invalid(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn records_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().join("dra"));
        assert!(folder.of_pod("0d3c").unwrap().is_empty() && folder.pods().unwrap().is_empty());
        let mut first = record("").unwrap();
        let mut second = first.clone();
        (second.claim.uid, second.claim.name) = ("b".to_owned(), "a-nic".to_owned());
        folder.lock().unwrap().write(&first).unwrap();
        folder.lock().unwrap().write(&second).unwrap();
        first.devices[0].mtu = Some(1400);
        folder.lock().unwrap().write(&first).unwrap();
        assert_eq!(folder.of_pod("0d3c").unwrap(), [second.clone(), first]);
        let path = folder.path().join("0d3c/b.json");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // What a killed write leaves.
        fs::write(folder.path().join("0d3c/.b.7.7"), "{").unwrap();
        assert_eq!(folder.claims_of("0d3c").unwrap().len(), 2);
        let remove = |claim| folder.lock().unwrap().remove("0d3c", claim).unwrap();
        assert!(remove("b") && !remove("b") && !folder.path().join("0d3c/.b.7.7").exists());
        assert_eq!(
            (folder.claims_of("0d3c").unwrap(), folder.pods().unwrap()),
            (vec!["c1a1".to_owned()], vec!["0d3c".to_owned()])
        );
        assert!(remove("c1a1"));
        assert!(!folder.path().join("0d3c").exists());
    }

    #[test]
    fn broken_and_foreign_files() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        folder.lock().unwrap().write(&record("").unwrap()).unwrap();
        let path = dir.path().join("0d3c/c1a1.json");
        let whole = fs::read(&path).unwrap();
        fs::write(dir.path().join("0d3c/aa.json"), &whole).unwrap();
        assert!(
            folder
                .of_pod("0d3c")
                .unwrap_err()
                .to_string()
                .ends_with("aa.json: it is of another pod or claim")
        );
        fs::remove_file(dir.path().join("0d3c/aa.json")).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(folder.of_pod("0d3c").unwrap_err().kind(), io::ErrorKind::InvalidData, "{end} bytes");
        }
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(folder.of_pod("0d3c").unwrap_err().to_string().contains("more than 4194304 bytes"));
        for uid in ["", "..", "0d3c/..", "x"] {
            assert!(folder.of_pod(uid).is_err() && folder.read("0d3c", uid).is_err(), "{uid}");
        }
    }
}

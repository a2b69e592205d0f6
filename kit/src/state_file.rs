//! A file that keeps the state of one attachment until DEL. It is complete or absent: it is written under another name
//! first, which has a hash of the network's name for GC.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use cni_common::spec::{CniError, Code, Failures};
use ferrule_kernel::file;

use crate::hash::sha512_hex;

/// The end of the files' names that a plugin of ours has chosen.
pub const JSON: &str = ".json";

/// The state file of an attachment.
pub struct StateFile {
    path: PathBuf,
    pending: PathBuf,
}

impl StateFile {
    /// The file `<folder>/<stem><extension>`, which need not exist.
    pub fn new(folder: &Path, stem: &str, extension: &str, network: &str) -> Self {
        let name = format!("{stem}{extension}");
        let pending = folder.join(format!("{name}{}", pending_extension(network)));
        StateFile { path: folder.join(name), pending }
    }

    /// The content; `None` if there is no file.
    ///
    /// # Errors
    /// Code 5 if the file cannot be read.
    pub fn read(&self) -> Result<Option<Vec<u8>>, CniError> {
        match file::read(&self.path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(failed("read", &self.path, &error)),
        }
    }

    /// The file as it is now; `None` if there is none.
    pub fn seen(&self) -> Option<Seen> {
        Seen::now(&self.path)
    }

    /// Writes or replaces the file. Makes missing folders.
    ///
    /// # Errors
    /// Code 5 if the file cannot be written.
    pub fn write(&self, bytes: &[u8]) -> Result<(), CniError> {
        let replace = || file::replace(&self.path, &self.pending, 0o600, bytes);
        let written = replace().or_else(|error| match self.path.parent() {
            Some(folder) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                replace()
            }
            _ => Err(error),
        });
        written.map_err(|error| failed("save", &self.path, &error))
    }

    /// Removes the file, if it exists, and what a killed ADD has left of it.
    ///
    /// # Errors
    /// Code 5 if one cannot be removed.
    pub fn remove(&self) -> Result<(), CniError> {
        remove(&self.pending)?;
        remove(&self.path)
    }
}

/// The longest stem in bytes that is not hashed. File names have at most 255.
const MAX_STEM: usize = 200;

/// The name of an attachment's file without its extension. Neither part contains a colon. A long container ID is hashed.
pub fn stem(container_id: &str, ifname: &str) -> String {
    let plain = format!("{container_id}:{ifname}");
    if plain.len() > MAX_STEM { sha512_hex(&plain, 64) } else { plain }
}

/// Whether the folder does not exist, or can be listed. For a tool that must not take an unreadable folder for an empty one.
///
/// # Errors
/// Code 5 if it cannot be listed.
pub fn can_list(folder: &Path) -> Result<(), CniError> {
    names(folder).map(drop)
}

/// The names of the files in the folder; none if it does not exist.
fn names(folder: &Path) -> Result<impl Iterator<Item = String> + use<>, CniError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if !is_absent(&error) => return Err(failed("list", folder, &error)),
        entries => entries.into_iter().flatten(),
    };
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()))
}

/// All files in the folder with their contents. Skips those that cannot be read, and those with another extension, so also
/// those that are not complete unless the extension is empty.
pub fn list(folder: &Path, extension: &str) -> impl Iterator<Item = (PathBuf, Vec<u8>)> {
    let complete = names(folder).into_iter().flatten().filter(move |name| name.ends_with(extension));
    complete
        .map(|name| folder.join(name))
        .filter_map(|path| file::read(&path).ok().map(|bytes| (path, bytes)))
}

/// The pending files in the folder of ADDs on one of these networks, perhaps of killed ones: path, stem
/// and network. The hash of the network in the name shows that a file is ours.
pub fn list_pending<'n>(
    folder: &Path,
    extension: &str,
    networks: impl Iterator<Item = &'n str>,
) -> Vec<(PathBuf, String, &'n str)> {
    let extensions: Vec<(String, &str)> =
        networks.map(|network| (format!("{extension}{}", pending_extension(network)), network)).collect();
    let pending = |name: String| {
        let of = |(end, network): &(String, &'n str)| Some((name.strip_suffix(end)?.to_owned(), *network));
        let (stem, network) = extensions.iter().find_map(of)?;
        Some((folder.join(&name), stem, network))
    };
    names(folder).into_iter().flatten().filter_map(pending).collect()
}

/// GC: removes the files of the network's attachments that are not valid, and what killed ADDs of the network have left.
/// All networks share the folder. `release` gets the content of each file whose stem `is_valid` does not know: it
/// cleans up if the file belongs to the network, and returns whether it does.
///
/// # Errors
/// All files that could not be read or removed, and the errors of `release`, after which the file stays.
pub fn collect(
    folder: &Path,
    network: &str,
    is_valid: impl Fn(&str) -> bool,
    mut release: impl FnMut(&[u8]) -> Result<bool, CniError>,
) -> Result<(), CniError> {
    let pending_extension = pending_extension(network);
    let mut failures = Failures::default();
    for name in names(folder)? {
        let path = folder.join(&name);
        let complete = name.strip_suffix(&pending_extension);
        let Some(stem) = complete.unwrap_or(&name).strip_suffix(JSON) else { continue };
        if is_valid(stem) {
            continue;
        }
        let is_own = match file::read(&path) {
            _ if complete.is_some() => Ok(true),
            Ok(bytes) => release(&bytes),
            Err(_) => Ok(false),
        };
        if failures.keep(is_own) == Some(true) {
            failures.keep(remove(&path));
        }
    }
    failures.into_result()
}

/// Ends the names of the pending files of ADDs on this network.
pub fn pending_extension(network: &str) -> String {
    format!(".{}", sha512_hex(network, 16))
}

/// `InvalidFilename`: no ADD with this container ID could make the file.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
}

fn failed(what: &str, path: &Path, error: &io::Error) -> CniError {
    CniError::new(Code::Io, format!("failed to {what} file {}: {error}", path.display()))
}

/// Removes a file that [`list`] or [`list_pending`] has returned, if it still exists.
///
/// # Errors
/// Code 5 if it cannot be removed.
pub fn remove(path: &Path) -> Result<(), CniError> {
    match fs::remove_file(path) {
        // On a file system that is read-only, the kernel refuses before it looks for the file.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem && is_gone(path) => Ok(()),
        Err(error) if !is_absent(&error) => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// A file as it was seen. One that is written again, or replaced, has another time of change or another inode number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    path: PathBuf,
    inode: (u64, u64),
    changed: (i64, i64),
}

impl Seen {
    /// The file as it is now; `None` if there is none.
    pub fn now(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        let (inode, changed) = ((found.dev(), found.ino()), (found.ctime(), found.ctime_nsec()));
        Some(Seen { path: path.to_owned(), inode, changed })
    }

    /// Removes the file, if it is still as it was seen. Whether it was.
    ///
    /// # Errors
    /// Code 5 if it cannot be removed.
    pub fn remove(&self) -> Result<bool, CniError> {
        match Seen::now(&self.path).as_ref() == Some(self) {
            true => remove(&self.path).map(|()| true),
            false => Ok(false),
        }
    }
}

fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| is_absent(&error))
}

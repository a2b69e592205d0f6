//! The files in the folder of the plugins, and in `.ferrule` and `.ferrule-new` below it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat, geteuid};

use crate::copy;
use crate::fingerprint::Fingerprint;
use crate::journal::Journal;
use crate::manifest::Manifest;
use crate::plan::Present;

/// The folder of the plugins.
#[derive(Debug)]
pub struct Folder {
    /// Its absolute path.
    pub bin: PathBuf,
    /// Manifest, journal and saved files.
    pub state: PathBuf,
    /// New files, each under the plugin's name, because a program selects the plugin by its file name. On
    /// the same file system as the files that they replace.
    pending: PathBuf,
}

impl Folder {
    /// The folder at this path, which need not exist.
    ///
    /// # Errors
    /// It, or the folder to create it in, is no folder; or cannot be written, unless `read_only`.
    pub fn new(bin: &Path, read_only: bool) -> Result<Self> {
        let bin = std::path::absolute(bin)?;
        let folder = Folder { state: bin.join(".ferrule"), pending: bin.join(".ferrule-new"), bin };
        if let Ok(meta) = fs::symlink_metadata(&folder.state)
            && !meta.is_dir()
        {
            let kind = if meta.is_symlink() { "is a link and" } else { "is" };
            bail!("{} {kind} not a folder", folder.state.display());
        }
        let existing = existing(&folder.bin);
        let shown = existing.display();
        if !existing.is_dir() {
            bail!("{shown} is not a folder");
        }
        if !read_only && faccessat(AT_FDCWD, existing, AccessFlags::W_OK, AtFlags::AT_EACCESS).is_err() {
            bail!(match geteuid().is_root() {
                true => format!("{shown} is not writable; is its file system mounted read-only?"),
                false =>
                    format!("{shown} is not writable for you; run this as root, or name another --bin-dir"),
            });
        }
        Ok(folder)
    }

    /// Creates the folder and its parents. Adds each new one to `created`.
    ///
    /// # Errors
    /// A folder cannot be created.
    pub fn create(&self, created: &mut Vec<PathBuf>) -> Result<()> {
        let existing = existing(&self.bin).to_owned();
        let missing: Vec<&Path> = self.bin.ancestors().take_while(|path| *path != existing).collect();
        for path in missing.into_iter().rev() {
            create(path)?;
            created.push(path.to_owned());
        }
        Ok(())
    }

    /// Reads the manifest; a missing one is empty.
    ///
    /// # Errors
    /// It cannot be read or used.
    pub fn manifest(&self) -> Result<Manifest> {
        let path = self.path("manifest");
        Manifest::parse(&read(&path)?.unwrap_or_default()).with_context(|| path.display().to_string())
    }

    /// Reads the journal, if there is one.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub fn journal(&self) -> Result<Option<Journal>> {
        let path = self.path("journal");
        let Some(text) = read(&path)? else { return Ok(None) };
        Journal::parse(&text).with_context(|| format!("{} is damaged", path.display())).map(Some)
    }

    /// A file of the state folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }

    /// The fingerprint of the file under a name.
    ///
    /// # Errors
    /// As [`Fingerprint::of_path`].
    pub fn print(&self, name: &str) -> Result<Fingerprint> {
        Fingerprint::of_path(&self.bin.join(name))
    }

    /// The files under these names.
    ///
    /// # Errors
    /// As [`Fingerprint::of_path`].
    pub fn present<'n>(
        &self,
        names: impl IntoIterator<Item = &'n String>,
    ) -> Result<BTreeMap<String, Present>> {
        let present = |name: &String| {
            let path = self.bin.join(name);
            let is_executable = fs::metadata(&path).is_ok_and(|meta| meta.permissions().mode() & 0o111 != 0);
            Ok((name.clone(), Present { print: Fingerprint::of_path(&path)?, is_executable }))
        };
        names.into_iter().map(present).collect()
    }

    /// The saved file of a plugin.
    pub fn saved(&self, name: &str, print: &Fingerprint) -> PathBuf {
        self.state.join("saved").join(format!("{name}.{print}"))
    }

    /// The new file for a name, before it gets its name.
    pub fn pending(&self, name: &str) -> PathBuf {
        self.pending.join(name)
    }

    /// Creates the folder of the new files.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create_pending(&self) -> Result<()> {
        create(&self.pending)
    }

    /// Creates the folder of the state.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create_state(&self) -> Result<()> {
        create(&self.path("saved"))
    }

    /// Saves a copy of the file that is under a name now. Not a hard link: a later write into the file would
    /// change the saved one too.
    ///
    /// # Errors
    /// It cannot be copied, or changes meanwhile.
    pub fn save(&self, name: &str, print: &Fingerprint) -> Result<()> {
        let saved = self.saved(name, print);
        if print.is_none() || Fingerprint::of_path(&saved).is_ok_and(|saved| saved == *print) {
            return Ok(());
        }
        let file = self.bin.join(name);
        let pending = self.state.join("saved").join(format!("{name}.{print}.part"));
        copy::exact(&file, &pending).with_context(|| format!("cannot keep a copy of {}", file.display()))?;
        if Fingerprint::of_path(&pending)? != *print {
            bail!("{} changed while it was being copied", file.display());
        }
        rename(&pending, &saved)
    }

    /// Prepares a saved file. By a hard link if possible, because restoring must work on a full disk too.
    ///
    /// # Errors
    /// The saved file is damaged, or cannot be prepared.
    pub fn prepare_saved(&self, name: &str, print: &Fingerprint) -> Result<()> {
        if print.is_none() {
            return Ok(());
        }
        let (saved, pending) = (self.saved(name, print), self.pending(name));
        if Fingerprint::of_path(&saved)? != *print {
            bail!("{} is missing or damaged", saved.display());
        }
        self.create_pending()?;
        remove(&pending)?;
        fs::hard_link(&saved, &pending)
            .or_else(|_| copy::exact(&saved, &pending))
            .with_context(|| format!("cannot prepare {}", pending.display()))
    }

    /// Replaces the file by one rename(2), or removes it by one unlink(2) if there was none before.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn exchange(&self, name: &str, print: &Fingerprint) -> Result<()> {
        let file = self.bin.join(name);
        match print.is_none() {
            true => remove(&file),
            false => fs::rename(self.pending(name), &file)
                .with_context(|| format!("cannot exchange {}", file.display())),
        }
    }

    /// Writes a file of the state folder under the name `NAME.part`, and waits until it is on disk.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_pending(&self, name: &str, text: &str) -> Result<()> {
        let pending = self.path(&format!("{name}.part"));
        fs::write(&pending, text).with_context(|| format!("cannot write {}", pending.display()))?;
        sync(&pending)
    }

    /// Gives a file of the state folder its name.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn publish(&self, name: &str) -> Result<()> {
        rename(&self.path(&format!("{name}.part")), &self.path(name))
    }

    /// Removes incomplete files, saved files that the manifest does not name, and an empty state folder.
    /// Keeps everything while there is a journal, or if the manifest cannot be read.
    pub fn tidy(&self) {
        let _ = fs::remove_dir_all(&self.pending);
        if !self.state.is_dir() || self.path("journal").exists() {
            return;
        }
        let Ok(manifest) = self.manifest() else { return };
        if manifest.plugins.is_empty() {
            // The manifest last: without one, saved files have no meaning.
            let _ = fs::remove_dir_all(self.path("saved"));
            let _ = fs::remove_dir_all(&self.state);
            return;
        }
        remove_files(&self.state, |_, extension| extension == "part");
        remove_files(&self.path("saved"), |name, print| !manifest.needs(name, print));
    }

    /// Removes the journal.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn remove_journal(&self) -> Result<()> {
        remove(&self.path("journal"))
    }
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn create(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("cannot write {}", to.display()))
}

/// Removes a file; a missing one is success.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.with_context(|| format!("cannot remove {}", path.display())),
    }
}

/// Removes the files of a folder whose names before and after the last dot fulfil a condition.
fn remove_files(folder: &Path, is_stale: impl Fn(&str, &str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().and_then(|name| name.rsplit_once('.')).is_some_and(|(a, b)| is_stale(a, b)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Waits until a file, or the entries of a folder, are on disk.
///
/// # Errors
/// The error of the system call.
pub fn sync(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.with_context(|| format!("cannot write {}", path.display()))
}

/// The longest part of the path that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| fs::symlink_metadata(path).is_ok()).unwrap_or(path)
}

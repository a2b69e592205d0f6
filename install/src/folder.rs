//! The files in the folder of the plugins, and in `.ferrule` and `.ferrule-new` below it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::copy;
use crate::failure::{Failure, Step};
use crate::fingerprint::Fingerprint;
use crate::journal::Journal;
use crate::manifest::Manifest;
use crate::plan::Present;

/// The folder of the plugins.
#[derive(Debug)]
pub struct Folder {
    /// Its path, absolute and without links.
    pub bin: PathBuf,
    /// Manifest, journal and saved files.
    pub state: PathBuf,
    /// New files, each under the plugin's name, because a program selects the plugin by its file name. On
    /// the same file system as the files that they replace.
    staging: PathBuf,
}

impl Folder {
    /// The folder at this path, which need not exist.
    ///
    /// # Errors
    /// A part of the path cannot be read.
    pub fn new(bin: &Path) -> Result<Self, Failure> {
        let bin = resolve(bin).step(|| format!("cannot find {}", bin.display()))?;
        Ok(Folder { state: bin.join(".ferrule"), staging: bin.join(".ferrule-new"), bin })
    }

    /// Fails if the folder, or the one to create it in, is no folder; or, unless `read_only`, if it cannot
    /// be written.
    ///
    /// # Errors
    /// Why the folder cannot be used.
    pub fn check(&self, read_only: bool) -> Result<(), Failure> {
        let kind = fs::symlink_metadata(&self.state).ok().map(|meta| meta.file_type());
        if kind.is_some_and(|kind| kind.is_symlink()) {
            return Err(Failure::new(format!("{} is a link and not a folder", self.state.display())));
        }
        if kind.is_some_and(|kind| !kind.is_dir()) {
            return Err(Failure::new(format!("{} is not a folder", self.state.display())));
        }
        let there = existing(&self.bin);
        let shown = there.display();
        if !there.is_dir() {
            return Err(Failure::new(format!("{shown} is not a folder")));
        }
        if read_only || accessat(CWD, there, Access::WRITE_OK, AtFlags::EACCESS).is_ok() {
            return Ok(());
        }
        Err(Failure::new(match nix::unistd::geteuid().is_root() {
            true => format!("{shown} is not writable; is its file system mounted read-only?"),
            false => format!("{shown} is not writable for you; run this as root, or name another --bin-dir"),
        }))
    }

    /// Creates the folder and its parents. Adds each new one to `made`.
    ///
    /// # Errors
    /// A folder cannot be created.
    pub fn create(&self, made: &mut Vec<PathBuf>) -> Result<(), Failure> {
        let there = existing(&self.bin).to_owned();
        let missing: Vec<&Path> = self.bin.ancestors().take_while(|path| *path != there).collect();
        for path in missing.into_iter().rev() {
            copy::folder(path).step(|| format!("cannot make {}", path.display()))?;
            made.push(path.to_owned());
        }
        Ok(())
    }

    /// Reads the manifest; a missing one is empty.
    ///
    /// # Errors
    /// It cannot be read or used.
    pub fn manifest(&self) -> Result<Manifest, Failure> {
        let path = self.path("manifest");
        let Some(text) = read(&path)? else { return Ok(Manifest::default()) };
        Manifest::parse(&text).map_err(|why| Failure::new(format!("{} {why}", path.display())))
    }

    /// Reads the journal, if there is one.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub fn journal(&self) -> Result<Option<Journal>, Failure> {
        let path = self.path("journal");
        let Some(text) = read(&path)? else { return Ok(None) };
        let damaged = || Failure::new(format!("{} is damaged", path.display()));
        Journal::parse(&text).ok_or_else(damaged).map(Some)
    }

    /// A file of the state folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }

    /// The fingerprint of the file under a name.
    ///
    /// # Errors
    /// As [`Fingerprint::of_path`].
    pub fn print(&self, name: &str) -> Result<Fingerprint, Failure> {
        Fingerprint::of_path(&self.bin.join(name))
    }

    /// The files under these names. Links to one file are read once.
    ///
    /// # Errors
    /// As [`Fingerprint::of_path`].
    pub fn present<'n>(
        &self,
        names: impl IntoIterator<Item = &'n String>,
    ) -> Result<BTreeMap<String, Present>, Failure> {
        let mut prints = BTreeMap::new();
        let mut present = BTreeMap::new();
        for name in names {
            let path = self.bin.join(name);
            let id = identity(&path);
            let print = match id.and_then(|id| prints.get(&id)) {
                Some(print) => Fingerprint::clone(print),
                None => Fingerprint::of_path(&path)?,
            };
            prints.extend(id.map(|id| (id, print.clone())));
            let is_executable = accessat(CWD, &path, Access::EXEC_OK, AtFlags::EACCESS).is_ok();
            present.insert(name.clone(), Present { print, is_executable });
        }
        Ok(present)
    }

    /// The saved file of a plugin.
    pub fn saved(&self, name: &str, print: &Fingerprint) -> PathBuf {
        self.state.join("saved").join(format!("{name}.{print}"))
    }

    /// The new file for a name.
    pub fn staged(&self, name: &str) -> PathBuf {
        self.staging.join(name)
    }

    /// Creates the folder of the new files.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create_staging(&self) -> Result<(), Failure> {
        copy::folder(&self.staging).step(|| format!("cannot make {}", self.staging.display()))
    }

    /// Saves a copy of the file that is under a name now. Not a hard link: a later write into the file would
    /// change the saved one too.
    ///
    /// # Errors
    /// It cannot be copied, or changes meanwhile.
    pub fn save(&self, name: &str, print: &Fingerprint) -> Result<(), Failure> {
        let kept = self.saved(name, print);
        if print.is_none() || Fingerprint::of_path(&kept).is_ok_and(|saved| saved == *print) {
            return Ok(());
        }
        let file = self.bin.join(name);
        let part = self.state.join("saved").join(format!("{name}.{print}.part"));
        copy::exact(&file, &part).step(|| format!("cannot keep a copy of {}", file.display()))?;
        if Fingerprint::of_path(&part)? != *print {
            return Err(Failure::new(format!("{} changed while it was being copied", file.display())));
        }
        fs::rename(&part, &kept).step(|| format!("cannot rename {}", part.display()))
    }

    /// Prepares a saved file. By a hard link if possible, because restoring must work on a full disk too.
    ///
    /// # Errors
    /// The saved file is damaged, or cannot be prepared.
    pub fn stage_saved(&self, name: &str, print: &Fingerprint) -> Result<(), Failure> {
        if print.is_none() {
            return Ok(());
        }
        let (kept, new) = (self.saved(name, print), self.staged(name));
        if Fingerprint::of_path(&kept)? != *print {
            return Err(Failure::new(format!("{} is missing or damaged", kept.display())));
        }
        self.create_staging()?;
        remove(&new)
            .and_then(|()| fs::hard_link(&kept, &new).or_else(|_| copy::exact(&kept, &new)))
            .step(|| format!("cannot prepare {}", new.display()))
    }

    /// Replaces the file by one rename(2), or removes it by one unlink(2) if there was none before.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn exchange(&self, name: &str, print: &Fingerprint) -> Result<(), Failure> {
        let file = self.bin.join(name);
        match print.is_none() {
            true => remove(&file),
            false => fs::rename(self.staged(name), &file),
        }
        .step(|| format!("cannot exchange {}", file.display()))
    }

    /// Writes a file of the state folder under the name `NAME.part`, and waits until it is on disk.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_part(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let part = self.path(&format!("{name}.part"));
        fs::write(&part, text)
            .and_then(|()| sync(&part))
            .map(|()| part.clone())
            .step(|| format!("cannot write {}", part.display()))
    }

    /// Removes incomplete files, saved files that the manifest does not name, and an empty state folder.
    /// Keeps everything while there is a journal, or if the manifest cannot be read.
    pub fn tidy(&self) {
        let _ = fs::remove_dir_all(&self.staging);
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
        for file in list(&self.state) {
            if file.extension().is_some_and(|extension| extension == "part") {
                let _ = fs::remove_file(file);
            }
        }
        for file in list(&self.path("saved")) {
            let is_needed = file.file_name().and_then(|name| name.to_str()?.rsplit_once('.'));
            if !is_needed.is_some_and(|(name, print)| manifest.needs(name, print)) {
                let _ = fs::remove_file(file);
            }
        }
    }

    /// Waits until the entries of a folder are on disk.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn sync(&self, folder: &Path) -> Result<(), Failure> {
        sync(folder).step(|| format!("cannot write {}", folder.display()))
    }

    /// Removes the journal.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn remove_journal(&self) -> Result<(), Failure> {
        let journal = self.path("journal");
        remove(&journal).step(|| format!("cannot remove {}", journal.display()))
    }
}

fn list(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn read(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some).step(|| format!("cannot read {}", path.display())),
    }
}

/// Removes a file; a missing one is success.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The inode of a regular file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((meta.dev(), meta.ino()))
}

/// The longest part of the path that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| fs::symlink_metadata(path).is_ok()).unwrap_or(path)
}

/// The absolute path without links and without `..`, even if its end does not exist.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut resolved = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            _ => resolved.push(part),
        }
        match fs::canonicalize(&resolved) {
            Ok(real) => resolved = real,
            // Missing, or below a file: the check of the folder reports that.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(resolved)
}

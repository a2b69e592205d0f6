//! One command at work on a folder: the lock, the transaction, and the way back if it fails.

use std::fs::{self, File, TryLockError};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, umask};

use crate::console::note;
use crate::failure::{Failure, Step};
use crate::fingerprint::Fingerprint;
use crate::folder::Folder;
use crate::journal::{Journal, Swap};
use crate::manifest::Manifest;
use crate::signals::Signals;

/// The pause between two tries to lock the folder.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A command at work.
#[derive(Debug)]
pub struct Session {
    /// The folder.
    pub folder: Folder,
    /// The signals that end the command.
    pub signals: Signals,
    /// The folder, open while it is locked.
    lock: Option<File>,
    /// New folders, which go if the command fails.
    made: Vec<PathBuf>,
    /// Whether the journal may be there and the changes are not complete.
    is_in_flight: bool,
}

impl Session {
    /// Runs a command. If it fails, restores the files that it has replaced.
    ///
    /// # Errors
    /// Those of `command`.
    pub fn run<T>(
        folder: Folder,
        signals: Signals,
        command: impl FnOnce(&mut Session) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // The modes of new files do not depend on the user's settings.
        umask(Mode::from_bits_truncate(0o022));
        let mut session = Session { folder, signals, lock: None, made: Vec::new(), is_in_flight: false };
        let mut outcome = command(&mut session);
        if session.lock.is_some() {
            if session.is_in_flight {
                // The journal may not have been written.
                if let Err(worse) = session.undo("putting back what was already exchanged") {
                    note(outcome.err().and_then(|failure| failure.message).unwrap_or_default());
                    outcome = Err(worse);
                }
            }
            session.folder.tidy();
        }
        if outcome.is_err() {
            for path in session.made.iter().rev() {
                let _ = fs::remove_dir(path);
            }
        }
        outcome
    }

    /// Creates the folder if it is missing.
    ///
    /// # Errors
    /// A folder cannot be created.
    pub fn create_folder(&mut self) -> Result<(), Failure> {
        self.folder.create(&mut self.made)
    }

    /// Locks the folder itself, which leaves no lock file behind, and cleans up after an earlier run that was
    /// killed.
    ///
    /// # Errors
    /// The folder is still locked after `limit`, or the earlier state cannot be restored.
    pub fn lock(&mut self, limit: Duration) -> Result<(), Failure> {
        let shown = self.folder.bin.display();
        let file = File::open(&self.folder.bin).step(|| format!("cannot open {shown}"))?;
        let end = Instant::now() + limit;
        let mut is_first = true;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => {
                    return Err(Failure::new(format!("cannot lock {shown}: {error}")));
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= end => {
                    return Err(Failure::new(format!(
                        "another installation is still at work on {shown}; try again later"
                    )));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if is_first {
                let seconds = limit.as_secs();
                note(format_args!(
                    "another installation is at work on {shown}; waiting up to {seconds} seconds"
                ));
                is_first = false;
            }
            self.signals.wait(LOCK_PAUSE)?;
        }
        self.lock = Some(file);
        self.recover()
    }

    fn recover(&self) -> Result<(), Failure> {
        if let Some(journal) = self.folder.journal()? {
            let manifest = Fingerprint::of_path(&self.folder.path("manifest"))?;
            if journal.is_complete(&manifest) {
                self.folder.remove_journal()?;
            } else {
                self.undo("an earlier run was interrupted; putting back what it had exchanged")?;
            }
        }
        self.folder.tidy();
        Ok(())
    }

    /// Restores the files that the journal names. Tries every file, and prints the name of each restored one.
    fn undo(&self, why: &str) -> Result<(), Failure> {
        let Some(journal) = self.folder.journal()? else { return Ok(()) };
        note(why);
        let mut is_restored = true;
        for swap in journal.swaps.iter().filter(|swap| swap.before != swap.after) {
            match self.undo_one(swap) {
                Ok(false) => {}
                Ok(true) => note(format_args!("{}: put back", swap.name)),
                Err(failure) => {
                    is_restored = false;
                    let saved = self.folder.saved(&swap.name, &swap.before);
                    note(format_args!(
                        "{}: CANNOT be put back: {}; what was there is in {}",
                        swap.name,
                        failure.message.unwrap_or_default(),
                        saved.display()
                    ));
                }
            }
        }
        if !is_restored {
            return Err(Failure::new("the state before the interrupted run cannot be restored"));
        }
        let _ = self.folder.sync(&self.folder.bin);
        self.folder.remove_journal()
    }

    /// Returns whether the file had been exchanged.
    fn undo_one(&self, Swap { name, before, after }: &Swap) -> Result<bool, Failure> {
        if self.folder.print(name)? != *after {
            return Ok(false);
        }
        self.folder.stage_saved(name, before)?;
        self.folder.exchange(name, before)?;
        Ok(true)
    }

    /// Replaces all files or none. The new files are staged.
    ///
    /// # Errors
    /// A step failed. [`Session::run`] restores the files.
    pub fn transact(&mut self, swaps: &[Swap], manifest: &Manifest) -> Result<(), Failure> {
        let folder = &self.folder;
        for path in [folder.state.clone(), folder.path("saved")] {
            crate::copy::folder(&path).step(|| format!("cannot make {}", path.display()))?;
        }
        for swap in swaps {
            self.signals.check()?;
            folder.save(&swap.name, &swap.before)?;
        }
        let manifest = manifest.to_string();
        let new_manifest = folder.write_part("manifest", &manifest)?;
        let commits = Some(Fingerprint::of_content(manifest.as_bytes()));
        let journal = Journal { commits, swaps: swaps.to_vec() };
        let new_journal = folder.write_part("journal", &journal.to_string())?;
        folder.sync(&folder.path("saved"))?;
        self.is_in_flight = true;
        rename(&new_journal, folder.path("journal"))?;
        // The journal and the folder that it is in are on disk before the first file changes.
        folder.sync(&folder.state)?;
        folder.sync(&folder.bin)?;

        for swap in swaps {
            self.signals.check()?;
            if folder.print(&swap.name)? != swap.before {
                let file = folder.bin.join(&swap.name);
                return Err(Failure::new(format!(
                    "{} has just been changed by another process",
                    file.display()
                )));
            }
            folder.exchange(&swap.name, &swap.after)?;
        }
        folder.sync(&folder.bin)?;
        rename(&new_manifest, folder.path("manifest"))?;
        self.is_in_flight = false;
        // The change is complete. If one of these steps fails, the next run repeats it.
        if let Err(failure) = folder.sync(&folder.state).and_then(|()| folder.remove_journal()) {
            note(failure.message.unwrap_or_default());
        }
        Ok(())
    }
}

fn rename(part: &PathBuf, path: PathBuf) -> Result<(), Failure> {
    fs::rename(part, &path).step(|| format!("cannot write {}", path.display()))
}

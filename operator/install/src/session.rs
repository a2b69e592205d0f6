//! One command at work on a folder: the lock, the transaction, and the way back if it fails.

use std::fs::{self, File, TryLockError};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::stat::{Mode, umask};

use crate::console::note;
use crate::fingerprint::Fingerprint;
use crate::folder::{Folder, sync};
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
    created: Vec<PathBuf>,
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
        command: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        // The modes of new files do not depend on the user's settings.
        umask(Mode::from_bits_truncate(0o022));
        let mut session = Session { folder, signals, lock: None, created: Vec::new(), is_in_flight: false };
        let mut outcome = command(&mut session);
        if session.lock.is_some() {
            // The journal may not have been written.
            if session.is_in_flight
                && let Err(worse) = session.undo("putting back what was already exchanged")
            {
                if let Err(error) = outcome {
                    note(format_args!("{error:#}"));
                }
                outcome = Err(worse);
            }
            session.folder.tidy();
        }
        if outcome.is_err() {
            for path in session.created.iter().rev() {
                let _ = fs::remove_dir(path);
            }
        }
        outcome
    }

    /// Creates the folder if it is missing.
    ///
    /// # Errors
    /// A folder cannot be created.
    pub fn create_folder(&mut self) -> Result<()> {
        self.folder.create(&mut self.created)
    }

    /// Locks the folder itself, which leaves no lock file behind, and cleans up after an earlier run that was
    /// killed.
    ///
    /// # Errors
    /// The folder is still locked after so many seconds, or the earlier state cannot be restored.
    pub fn lock(&mut self, seconds: u64) -> Result<()> {
        let shown = self.folder.bin.display();
        let file = File::open(&self.folder.bin).with_context(|| format!("cannot open {shown}"))?;
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut is_waiting = false;
        while let Err(error) = file.try_lock() {
            match error {
                TryLockError::Error(error) => return Err(error).context(format!("cannot lock {shown}")),
                TryLockError::WouldBlock if Instant::now() >= end => {
                    bail!("another installation is still at work on {shown}; try again later")
                }
                TryLockError::WouldBlock if is_waiting => {}
                TryLockError::WouldBlock => note(format_args!(
                    "another installation is at work on {shown}; waiting up to {seconds} seconds"
                )),
            }
            is_waiting = true;
            self.signals.check()?;
            thread::sleep(LOCK_PAUSE);
        }
        self.lock = Some(file);
        self.recover()
    }

    fn recover(&self) -> Result<()> {
        if let Some(journal) = self.folder.journal()? {
            match journal.is_complete(&Fingerprint::of_path(&self.folder.path("manifest"))?) {
                true => self.folder.remove_journal()?,
                false => self.undo("an earlier run was interrupted; putting back what it had exchanged")?,
            }
        }
        self.folder.tidy();
        Ok(())
    }

    /// Restores the files that the journal names. Tries every file, and prints the name of each restored one.
    fn undo(&self, why: &str) -> Result<()> {
        let Some(journal) = self.folder.journal()? else { return Ok(()) };
        note(format_args!("{why}"));
        let mut is_restored = true;
        for swap in journal.swaps.iter().filter(|swap| swap.before != swap.after) {
            match self.undo_one(swap) {
                Ok(false) => {}
                Ok(true) => note(format_args!("{}: put back", swap.name)),
                Err(error) => {
                    is_restored = false;
                    let saved = self.folder.saved(&swap.name, &swap.before);
                    note(format_args!(
                        "{}: CANNOT be put back: {error:#}; what was there is in {}",
                        swap.name,
                        saved.display()
                    ));
                }
            }
        }
        if !is_restored {
            bail!("the state before the interrupted run cannot be restored");
        }
        let _ = sync(&self.folder.bin);
        self.folder.remove_journal()
    }

    /// Returns whether the file had been exchanged.
    fn undo_one(&self, Swap { name, before, after }: &Swap) -> Result<bool> {
        if self.folder.print(name)? != *after {
            return Ok(false);
        }
        self.folder.prepare_saved(name, before)?;
        self.folder.exchange(name, before)?;
        Ok(true)
    }

    /// Replaces all files or none. The new files are pending.
    ///
    /// # Errors
    /// A step failed. [`Session::run`] restores the files.
    pub fn transact(&mut self, swaps: Vec<Swap>, manifest: &Manifest) -> Result<()> {
        let folder = &self.folder;
        folder.create_state()?;
        for swap in &swaps {
            self.signals.check()?;
            folder.save(&swap.name, &swap.before)?;
        }
        let manifest = manifest.to_string();
        folder.write_pending("manifest", &manifest)?;
        let journal = Journal { commits: Some(Fingerprint::of_content(manifest)), swaps };
        folder.write_pending("journal", &journal.to_string())?;
        sync(&folder.path("saved"))?;
        self.is_in_flight = true;
        folder.publish("journal")?;
        // The journal and the folder that it is in are on disk before the first file changes.
        sync(&folder.state)?;
        sync(&folder.bin)?;

        for swap in &journal.swaps {
            self.signals.check()?;
            if folder.print(&swap.name)? != swap.before {
                bail!("{} has just been changed by another process", folder.bin.join(&swap.name).display());
            }
            folder.exchange(&swap.name, &swap.after)?;
        }
        sync(&folder.bin)?;
        folder.publish("manifest")?;
        self.is_in_flight = false;
        // The change is complete. If one of these steps fails, the next run repeats it.
        if let Err(error) = sync(&folder.state).and_then(|()| folder.remove_journal()) {
            note(format_args!("{error:#}"));
        }
        Ok(())
    }
}

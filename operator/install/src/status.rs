//! The installed plugins of a folder.

use std::fmt::Write;
use std::fs::{File, TryLockError};

use anyhow::Result;
use serde::Serialize;

use crate::TOOL;
use crate::folder::Folder;
use crate::manifest::{Installed, Replaced};
use crate::names::Names;
use crate::options::Status;
use crate::plan::Present;

/// The condition of an installation, the exit status of `ferrule status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Every installed file is as it was installed.
    Sound,
    /// A file has changed, or an installation was interrupted.
    Disturbed,
    /// Ferrule is not installed there.
    NotInstalled,
}

/// A folder, as `ferrule status --json` prints it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    bin_dir: String,
    installed: bool,
    busy: bool,
    interrupted: bool,
    plugins: Vec<Entry>,
}

/// One name in the folder.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    state: &'static str,
    /// Of the installed file.
    version: Option<String>,
    /// What uninstall restores.
    before: Option<&'static str>,
    /// What rollback restores.
    rollback: Option<String>,
}

/// Describes the folder, as a table or as JSON.
///
/// # Errors
/// The folder cannot be read.
pub fn status(options: &Status, plugins: &[&str]) -> Result<(String, Condition)> {
    let folder = Folder::new(&options.bin_dir, true)?;
    let manifest = folder.manifest()?;
    let names: Names = plugins.iter().copied().chain([TOOL]).map(str::to_owned).collect();
    let present = folder.present(names.iter().chain(manifest.plugins.keys()))?;
    let entry = |(name, file): (&String, _)| {
        Entry::new(name, file, manifest.plugins.get(name), manifest.last.get(name))
    };
    let busy = is_busy(&folder);
    let document = Document {
        bin_dir: folder.bin.to_string_lossy().into_owned(),
        busy,
        interrupted: !busy && folder.journal()?.is_some(),
        plugins: present.iter().map(entry).collect(),
        installed: !manifest.plugins.is_empty(),
    };
    let condition = document.condition();
    let text = if options.json { serde_json::to_string_pretty(&document)? } else { document.to_table()? };
    Ok((text, condition))
}

/// Whether another process works on the folder.
fn is_busy(folder: &Folder) -> bool {
    File::open(&folder.bin).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

impl Entry {
    fn new(name: &str, file: &Present, installed: Option<&Installed>, last: Option<&Replaced>) -> Entry {
        let state = match installed {
            None if file.print.is_none() => "absent",
            None => "foreign",
            Some(_) if file.print.is_none() => "missing",
            Some(installed) if file.print != installed.ours.print => "changed",
            Some(_) if !file.is_executable => "not executable",
            Some(_) => "installed",
        };
        let rollback = |last: &Replaced| match &last.earlier {
            Some(ours) if ours.print == last.print => ours.version.clone(),
            _ => last.print.kind().to_owned(),
        };
        Entry {
            name: name.to_owned(),
            state,
            version: installed.map(|installed| installed.ours.version.clone()),
            before: installed.map(|installed| installed.original.kind()),
            rollback: last.map(rollback),
        }
    }
}

impl Document {
    fn condition(&self) -> Condition {
        let is_sound = |entry: &Entry| matches!(entry.state, "absent" | "foreign" | "installed");
        match self.installed {
            _ if self.interrupted || !self.plugins.iter().all(is_sound) => Condition::Disturbed,
            true => Condition::Sound,
            false => Condition::NotInstalled,
        }
    }

    fn to_table(&self) -> Result<String, std::fmt::Error> {
        let mut text = format!("In {}:\n", self.bin_dir);
        let mut row = |[name, state, version, before, rollback]: [&str; 5]| {
            writeln!(text, "{name:<12}  {state:<14}  {version:<8}  {before:<6}  {rollback}")
        };
        row(["NAME", "STATE", "VERSION", "BEFORE", "ROLLBACK"])?;
        for Entry { name, state, version, before, rollback } in &self.plugins {
            let [version, rollback] = [version, rollback].map(|text| text.as_deref().unwrap_or("-"));
            row([name, state, version, before.unwrap_or("-"), rollback])?;
        }
        if self.busy {
            writeln!(text, "Another installation is at work on this folder.")?;
        }
        if self.interrupted {
            writeln!(
                text,
                "An installation was interrupted: the next install, rollback or uninstall first restores the files that \
                 it replaced."
            )?;
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::manifest::Ours;

    #[test]
    fn states_of_a_name() {
        let [ours, other] = ["ours", "other"].map(Fingerprint::of_content);
        let of = |print: &Fingerprint| Ours { print: print.clone(), version: "v2".to_owned() };
        let installed = Installed { original: Fingerprint::none(), ours: of(&ours) };
        let present = |print: &Fingerprint, is_executable| Present { print: print.clone(), is_executable };
        let state = |print: &Fingerprint, is_executable, installed: Option<&Installed>| {
            Entry::new("bridge", &present(print, is_executable), installed, None).state
        };
        assert_eq!(state(&ours, true, Some(&installed)), "installed");
        assert_eq!(state(&ours, false, Some(&installed)), "not executable");
        assert_eq!(state(&other, true, Some(&installed)), "changed");
        assert_eq!(state(&Fingerprint::none(), false, Some(&installed)), "missing");
        assert_eq!(state(&other, true, None), "foreign");
        assert_eq!(state(&Fingerprint::none(), false, None), "absent");
        let last =
            Replaced { print: other.clone(), earlier: Some(Ours { version: "v1".to_owned(), ..of(&other) }) };
        let entry = Entry::new("bridge", &present(&ours, true), Some(&installed), Some(&last));
        assert_eq!((entry.version.as_deref(), entry.before), (Some("v2"), Some("none")));
        assert_eq!(entry.rollback.as_deref(), Some("v1"));
    }

    #[test]
    fn conditions() {
        let condition = |interrupted| {
            let absent = Present { print: Fingerprint::none(), is_executable: false };
            let plugins = vec![Entry::new("bridge", &absent, None, None)];
            let (bin_dir, installed, busy) = (String::new(), false, false);
            Document { bin_dir, installed, busy, interrupted, plugins }.condition()
        };
        assert_eq!([condition(false), condition(true)], [Condition::NotInstalled, Condition::Disturbed]);
    }
}

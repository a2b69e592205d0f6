//! The installed plugins of a folder.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::fingerprint::Fingerprint;
use crate::folder::Folder;
use crate::manifest::{Installed, Manifest, Replaced};
use crate::plan::Present;
use crate::{Contents, Request, TOOL};

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

/// One name in the folder.
#[derive(Debug)]
struct Entry {
    name: String,
    state: &'static str,
    version: String,
    before: String,
    rollback: String,
}

/// Describes the folder, as a table or as JSON.
///
/// # Errors
/// The folder cannot be read.
pub fn status(
    request: &Request,
    contents: Contents<'_>,
    as_json: bool,
) -> Result<(String, Condition), Failure> {
    let folder = Folder::new(&request.bin_dir)?;
    folder.check(true)?;
    let manifest = folder.manifest()?;
    let names: BTreeSet<String> = contents.plugins.iter().copied().chain([TOOL]).map(str::to_owned).collect();
    let names: BTreeSet<String> = names.into_iter().chain(manifest.plugins.keys().cloned()).collect();
    let present = folder.present(&names)?;
    let entries: Vec<Entry> = names
        .iter()
        .map(|name| entry(name, present.get(name), manifest.plugins.get(name), manifest.last.get(name)))
        .collect();
    let is_busy = is_busy(&folder);
    let is_interrupted = !is_busy && folder.journal()?.is_some();
    let condition = condition(&manifest, &entries, is_interrupted);
    let text = match as_json {
        true => to_json(&folder, &entries, is_busy, is_interrupted, condition),
        false => to_table(&folder, &entries, is_busy, is_interrupted),
    };
    Ok((text, condition))
}

fn entry(
    name: &str,
    present: Option<&Present>,
    installed: Option<&Installed>,
    last: Option<&Replaced>,
) -> Entry {
    let now = present.map_or_else(Fingerprint::none, |present| present.print.clone());
    let state = match installed {
        None if now.is_none() => "absent",
        None => "foreign",
        Some(_) if now.is_none() => "missing",
        Some(installed) if now != installed.ours.print => "changed",
        Some(_) if present.is_some_and(|present| !present.is_executable) => "not executable",
        Some(_) => "installed",
    };
    let dash = || "-".to_owned();
    let rollback = last.map_or_else(dash, |last| match &last.earlier {
        Some(ours) if ours.print == last.print => ours.version.clone(),
        _ => kind(&last.print).to_owned(),
    });
    Entry {
        name: name.to_owned(),
        state,
        version: installed.map_or_else(dash, |installed| installed.ours.version.clone()),
        before: installed.map_or_else(dash, |installed| kind(&installed.original).to_owned()),
        rollback,
    }
}

fn kind(print: &Fingerprint) -> &'static str {
    match (print.is_none(), print.is_link()) {
        (true, _) => "none",
        (_, true) => "link",
        _ => "file",
    }
}

fn condition(manifest: &Manifest, entries: &[Entry], is_interrupted: bool) -> Condition {
    let is_sound = |entry: &Entry| matches!(entry.state, "absent" | "foreign" | "installed");
    match () {
        () if is_interrupted || !entries.iter().all(is_sound) => Condition::Disturbed,
        () if manifest.plugins.is_empty() => Condition::NotInstalled,
        () => Condition::Sound,
    }
}

/// Whether another process works on the folder.
fn is_busy(folder: &Folder) -> bool {
    File::open(&folder.bin).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn to_table(folder: &Folder, entries: &[Entry], is_busy: bool, is_interrupted: bool) -> String {
    let head = ["NAME", "STATE", "VERSION", "BEFORE", "ROLLBACK"].map(str::to_owned);
    let rows: Vec<[String; 5]> = entries
        .iter()
        .map(|entry| {
            let Entry { name, state, version, before, rollback } = entry;
            [name.clone(), (*state).to_owned(), version.clone(), before.clone(), rollback.clone()]
        })
        .collect();
    let width = |column: usize| {
        rows.iter().chain([&head]).filter_map(|row| Some(row.get(column)?.len())).max().unwrap_or(0)
    };
    let mut lines = vec![format!("In {}:", folder.bin.display())];
    for row in [&head].into_iter().chain(&rows) {
        let cells: Vec<String> =
            row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column))).collect();
        lines.push(cells.join("  ").trim_end().to_owned());
    }
    if is_busy {
        lines.push("Another installation is at work on this folder.".to_owned());
    }
    if is_interrupted {
        lines.push(
            "An installation was interrupted: the next install, rollback or uninstall first restores the files that \
             it replaced."
                .to_owned(),
        );
    }
    lines.join("\n")
}

fn to_json(
    folder: &Folder,
    entries: &[Entry],
    is_busy: bool,
    is_interrupted: bool,
    condition: Condition,
) -> String {
    let value = |text: &String| if text == "-" { Value::Null } else { Value::from(text.as_str()) };
    let entries: Vec<Value> = entries
        .iter()
        .map(|entry| {
            json!({
                "name": entry.name,
                "state": entry.state,
                "version": value(&entry.version),
                "before": value(&entry.before),
                "rollback": value(&entry.rollback),
            })
        })
        .collect();
    let document = json!({
        "binDir": folder.bin.to_string_lossy(),
        "installed": condition != Condition::NotInstalled,
        "busy": is_busy,
        "interrupted": is_interrupted,
        "plugins": entries,
    });
    format!("{document:#}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Ours;

    #[test]
    fn states_of_a_name() {
        let [ours, other] = ["ours", "other"].map(|text| Fingerprint::of_content(text.as_bytes()));
        let of = |print: &Fingerprint| Ours { print: print.clone(), version: "v2".to_owned() };
        let installed = Installed { original: Fingerprint::none(), ours: of(&ours) };
        let state = |print: &Fingerprint, is_executable, installed: Option<&Installed>| {
            let present = Present { print: print.clone(), is_executable };
            entry("bridge", Some(&present), installed, None).state
        };
        assert_eq!(state(&ours, true, Some(&installed)), "installed");
        assert_eq!(state(&ours, false, Some(&installed)), "not executable");
        assert_eq!(state(&other, true, Some(&installed)), "changed");
        assert_eq!(state(&Fingerprint::none(), false, Some(&installed)), "missing");
        assert_eq!(state(&other, true, None), "foreign");
        assert_eq!(state(&Fingerprint::none(), false, None), "absent");
        let last =
            Replaced { print: other.clone(), earlier: Some(Ours { version: "v1".to_owned(), ..of(&other) }) };
        let entry = entry("bridge", None, Some(&installed), Some(&last));
        assert_eq!([&*entry.version, &*entry.before, &*entry.rollback], ["v2", "none", "v1"]);
    }

    #[test]
    fn conditions() {
        let empty = Manifest::default();
        let absent = || vec![entry("bridge", None, None, None)];
        assert_eq!(condition(&empty, &absent(), false), Condition::NotInstalled);
        assert_eq!(condition(&empty, &absent(), true), Condition::Disturbed);
    }
}

//! What a command changes: from the manifest and the files that are there to the changed files, the new
//! manifest and the lines for the user. Pure.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::fingerprint::Fingerprint;
use crate::journal::Swap;
use crate::manifest::{Installed, Manifest, Ours, Replaced};
use crate::names::Names;
use crate::{TOOL, daemons_of};

/// A program to install.
#[derive(Debug, Clone)]
pub struct Program {
    /// The name to install it under.
    pub name: String,
    /// Fingerprint and version.
    pub ours: Ours,
}

/// The file under a name in the folder.
#[derive(Debug, Clone)]
pub struct Present {
    /// The fingerprint.
    pub print: Fingerprint,
    /// Whether it can be executed.
    pub is_executable: bool,
}

/// The changes of one command.
#[derive(Debug, Default)]
pub struct Plan {
    /// The files to replace.
    pub swaps: Vec<Swap>,
    /// The manifest afterwards.
    pub manifest: Manifest,
    /// What to tell the user, on standard output.
    pub lines: Vec<String>,
    /// Files that stay because they have changed since the installation.
    pub left: Vec<String>,
    /// Rollback and uninstall: plugins that are as they were before, afterwards.
    pub settled: Names,
}

/// How far back to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// To the files that the last installation replaced.
    Last,
    /// To the files from before Ferrule.
    Original,
}

impl Plan {
    /// Whether a file of Ferrule is replaced by another program's.
    pub fn leaves(&self, manifest: &Manifest, name: &str) -> bool {
        manifest.plugins.contains_key(name) && !self.manifest.plugins.contains_key(name)
    }
}

/// Plans an installation. `would` precedes each verb in the lines.
pub fn install(
    manifest: &Manifest,
    programs: &[Program],
    present: &BTreeMap<String, Present>,
    would: &str,
) -> Plan {
    let mut plan = Plan { manifest: manifest.clone(), ..Plan::default() };
    let mut last = BTreeMap::new();
    for Program { name, ours } in programs {
        let now = present.get(name);
        let print = now.map_or_else(Fingerprint::none, |now| now.print.clone());
        let known = manifest.plugins.get(name);
        let is_ours = known.is_some_and(|known| known.ours.print == print);
        if is_ours && print == ours.print && now.is_some_and(|now| now.is_executable) {
            plan.lines.push(format!("{name}: is installed already"));
            continue;
        }
        let instead = match known {
            _ if print.is_none() => String::new(),
            Some(known) if is_ours => format!(" in place of our {}", known.ours.version),
            Some(_) => " in place of a file that is not what we installed last".to_owned(),
            None => " and keep the file that is there now".to_owned(),
        };
        plan.lines.push(format!("{name}: {would}install {}{instead}", ours.version));
        plan.swaps.push(Swap { name: name.clone(), before: print.clone(), after: ours.print.clone() });
        let original = known.map_or_else(|| print.clone(), |known| known.original.clone());
        last.insert(name.clone(), Replaced { print, earlier: known.map(|known| known.ours.clone()) });
        plan.manifest.plugins.insert(name.clone(), Installed { original, ours: ours.clone() });
    }
    if !plan.swaps.is_empty() {
        plan.manifest.last = last;
    }
    plan
}

/// The plugins to restore: those that can be, or the wanted ones among them. The tool goes with the last
/// plugin.
///
/// # Errors
/// A wanted name that cannot be restored.
pub fn select(manifest: &Manifest, back: Back, wanted: Option<&Names>) -> Result<Names> {
    let known: Names = match back {
        Back::Last => manifest.last.keys().cloned().collect(),
        Back::Original => manifest.plugins.keys().cloned().collect(),
    };
    let Some(wanted) = wanted else { return Ok(known) };
    if let Some(unknown) = wanted.difference(&known).next() {
        bail!("{unknown}: there is nothing to take back");
    }
    let mut names = wanted.clone();
    names.extend(daemons_of(wanted).map(str::to_owned).filter(|daemon| known.contains(daemon)));
    if known.difference(&names).all(|name| name == TOOL) {
        return Ok(known);
    }
    Ok(names)
}

/// Plans a rollback or an uninstallation of these plugins. With `force` files go that have changed since the
/// installation.
pub fn restore(
    manifest: &Manifest,
    back: Back,
    names: &Names,
    present: &BTreeMap<String, Present>,
    force: bool,
    would: &str,
) -> Plan {
    let mut plan = Plan { manifest: manifest.clone(), ..Plan::default() };
    for name in names {
        let Some(installed) = manifest.plugins.get(name) else { continue };
        let last = manifest.last.get(name);
        let (goal, earlier) = match (back, last) {
            (Back::Last, Some(last)) => (&last.print, last.earlier.clone()),
            _ => (&installed.original, None),
        };
        let now = present.get(name).map_or_else(Fingerprint::none, |now| now.print.clone());
        let is_ours = now == installed.ours.print;
        if now != *goal && !is_ours && !force {
            plan.left.push(name.clone());
            continue;
        }
        plan.settled.insert(name.clone());
        plan.manifest.last.remove(name);
        match earlier {
            Some(ours) => {
                let original = installed.original.clone();
                plan.manifest.plugins.insert(name.clone(), Installed { original, ours });
            }
            None => drop(plan.manifest.plugins.remove(name)),
        }
        // A file with the same content as ours may have another mode or owner, so it is restored too.
        if now == *goal && !is_ours {
            plan.lines.push(format!("{name}: is already what it was before"));
            continue;
        }
        plan.lines.push(match goal.is_none() {
            true => format!("{name}: {would}remove"),
            false => format!("{name}: {would}put back what was there before"),
        });
        plan.swaps.push(Swap { name: name.clone(), before: now, after: goal.clone() });
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(content: &str) -> Fingerprint {
        if content.is_empty() { Fingerprint::none() } else { Fingerprint::of_content(content) }
    }

    fn programs(version: &str, names: &[&str]) -> Vec<Program> {
        let program = |name: &&str| Program {
            name: (*name).to_owned(),
            ours: Ours { print: print(version), version: version.to_owned() },
        };
        names.iter().map(program).collect()
    }

    fn present(files: &[(&str, &str)]) -> BTreeMap<String, Present> {
        let entry = |(name, content): &(&str, &str)| {
            ((*name).to_owned(), Present { print: print(content), is_executable: true })
        };
        files.iter().map(entry).collect()
    }

    fn set(names: &[&str]) -> Names {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    const ALL: [&str; 3] = ["bridge", TOOL, "portmap"];

    /// The manifest after v1 was installed over the file "old" of bridge, and then v2.
    fn after_two() -> Manifest {
        let first = install(&Manifest::default(), &programs("v1", &ALL), &present(&[("bridge", "old")]), "");
        assert_eq!(first.lines[0], "bridge: install v1 and keep the file that is there now");
        let files = present(&ALL.map(|name| (name, "v1")));
        let second = install(&first.manifest, &programs("v2", &ALL), &files, "would ");
        assert_eq!(second.lines[0], "bridge: would install v2 in place of our v1");
        assert_eq!(second.swaps.len(), 3);
        second.manifest
    }

    #[test]
    fn installing_twice_changes_nothing() {
        let manifest = after_two();
        let files = present(&ALL.map(|name| (name, "v2")));
        let again = install(&manifest, &programs("v2", &ALL), &files, "");
        assert!(again.swaps.is_empty());
        assert_eq!(again.manifest, manifest);
        assert_eq!(again.lines[1], "ferrule: is installed already");
        let mut files = files;
        files.get_mut("bridge").unwrap().is_executable = false;
        assert_eq!(install(&manifest, &programs("v2", &ALL), &files, "").swaps.len(), 1);
    }

    #[test]
    fn originals_and_the_last_are_remembered() {
        let manifest = after_two();
        assert_eq!(manifest.plugins["bridge"].original, print("old"));
        assert_eq!(manifest.last["bridge"].print, print("v1"));
        let files = present(&[("bridge", "foreign")]);
        let third = install(&manifest, &programs("v3", &["bridge"]), &files, "");
        assert!(third.lines[0].ends_with("in place of a file that is not what we installed last"));
        assert_eq!(third.manifest.plugins["bridge"].original, print("old"));
        assert_eq!(third.manifest.last.keys().collect::<Vec<_>>(), ["bridge"]);
        assert_eq!(third.manifest.last["bridge"].print, print("foreign"));
    }

    #[test]
    fn rollback_then_uninstall() {
        let manifest = after_two();
        let files = present(&ALL.map(|name| (name, "v2")));
        let names = select(&manifest, Back::Last, None).unwrap();
        let back = restore(&manifest, Back::Last, &names, &files, false, "");
        assert_eq!(back.swaps[0], Swap { name: "bridge".into(), before: print("v2"), after: print("v1") });
        assert!(back.manifest.last.is_empty());
        assert_eq!(back.manifest.plugins["bridge"].ours.version, "v1");
        assert!(!back.leaves(&manifest, "portmap"));
        let out = restore(&manifest, Back::Original, &names, &files, false, "would ");
        assert_eq!(out.lines[0], "bridge: would put back what was there before");
        assert_eq!(out.lines[2], "portmap: would remove");
        assert_eq!(out.manifest, Manifest::default());
        assert!(out.leaves(&manifest, "portmap"));
    }

    #[test]
    fn changed_files_stay_without_force() {
        let manifest = after_two();
        let files = present(&[("bridge", "changed"), (TOOL, "v2"), ("portmap", "")]);
        let names = select(&manifest, Back::Original, None).unwrap();
        let out = restore(&manifest, Back::Original, &names, &files, false, "");
        assert_eq!(out.left, ["bridge"]);
        assert_eq!(out.lines, ["ferrule: remove", "portmap: is already what it was before"]);
        assert!(out.manifest.plugins.contains_key("bridge") && out.manifest.last.contains_key("bridge"));
        let forced = restore(&manifest, Back::Original, &names, &files, true, "");
        assert!(forced.left.is_empty() && forced.swaps[0].after == print("old"));
    }

    #[test]
    fn the_tool_goes_with_the_last_plugin() {
        let manifest = after_two();
        let selected = |names: &[&str]| select(&manifest, Back::Original, Some(&set(names)));
        assert_eq!(selected(&["bridge"]).unwrap(), set(&["bridge"]));
        assert_eq!(selected(&["bridge", "portmap"]).unwrap(), set(&ALL));
        let error = selected(&["bridge", "other"]).unwrap_err().to_string();
        assert_eq!(error, "other: there is nothing to take back");
    }
}

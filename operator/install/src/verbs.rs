//! The commands that change the folder: install, rollback, uninstall.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::error::{Error, ErrorKind};

use crate::console::{note, say};
use crate::fingerprint::Fingerprint;
use crate::folder::Folder;
use crate::host_ports::{self, HandOver};
use crate::journal::Swap;
use crate::manifest::Ours;
use crate::names::{self, Names};
use crate::options::{Install, Restore};
use crate::plan::{self, Back, Plan, Present, Program};
use crate::program::Source;
use crate::session::Session;
use crate::signals::Signals;
use crate::{Outcome, TOOL, chain, copy, daemons_of, index};

/// Installs this program under the name of each of its plugins, or the programs of `options.from`.
///
/// # Errors
/// No file has changed then.
pub fn install(options: &Install, plugins: &[&str]) -> Result<Outcome> {
    let change = &options.change;
    let sources = sources(options, plugins)?;
    let folder = Folder::new(&change.bin_dir, change.dry_run)?;
    let signals = Signals::catch()?;
    let programs = check(&sources, &signals)?;
    Session::run(folder, signals, |session| {
        if !change.dry_run {
            session.create_folder()?;
            session.lock(change.wait)?;
        }
        let folder = &session.folder;
        let mut present = folder.present(programs.iter().map(|program| &program.name))?;
        if change.dry_run {
            foresee_undo(folder, &mut present)?;
        }
        let plan = plan::install(&folder.manifest()?, &programs, &present, change.would());
        plan.lines.iter().for_each(say);
        let shown = folder.bin.display().to_string();
        if plan.swaps.is_empty() {
            say(format_args!("Nothing to do in {shown}."));
        } else if !change.dry_run {
            prepare(session, &sources, &plan)?;
            let names = names::join(plan.swaps.iter().map(|swap| &swap.name));
            session.transact(plan.swaps, &plan.manifest)?;
            say(format_args!("Installed in {shown}: {names}."));
        }
        Ok(Outcome::Done)
    })
}

/// Changes `present` in a dry run to its state after an interrupted run has been undone.
fn foresee_undo(folder: &Folder, present: &mut BTreeMap<String, Present>) -> Result<()> {
    let Some(journal) = folder.journal()? else { return Ok(()) };
    if journal.is_complete(&Fingerprint::of_path(&folder.path("manifest"))?) {
        return Ok(());
    }
    note("an earlier run was interrupted; without --dry-run, the files that it exchanged are put back first");
    for swap in journal.swaps {
        if let Some(present) = present.get_mut(&swap.name).filter(|present| present.print == swap.after) {
            present.print = swap.before;
        }
    }
    Ok(())
}

/// The programs to install. The tool comes along: it is needed for the way back. So does the daemon of a
/// plugin, if it is in the same folder.
fn sources(options: &Install, plugins: &[&str]) -> Result<Vec<Source>> {
    let mut names: Names = match &options.change.plugins {
        Some(names) => names.clone(),
        None => plugins.iter().map(|name| (*name).to_owned()).collect(),
    };
    let mut sources: BTreeMap<String, PathBuf> = BTreeMap::new();
    let folder = match &options.from {
        None => {
            names.insert(TOOL.to_owned());
            if let Some(unknown) =
                names.iter().find(|name| *name != TOOL && !plugins.contains(&name.as_str()))
            {
                let what = format!("there is no plugin '{unknown}' in this program\n");
                return Err(<Error>::raw(ErrorKind::InvalidValue, what).into());
            }
            sources.extend(names.iter().map(|name| (name.clone(), "/proc/self/exe".into())));
            std::env::current_exe().unwrap_or_default().with_file_name("")
        }
        Some(from) if !from.is_dir() => bail!("--from {}: there is no such folder", from.display()),
        Some(from) => {
            let from = fs::canonicalize(from).with_context(|| format!("cannot find {}", from.display()))?;
            names.extend(from.join(TOOL).is_file().then(|| TOOL.to_owned()));
            sources.extend(names.iter().map(|name| (name.clone(), from.join(name))));
            from
        }
    };
    let daemons = daemons_of(&names).map(|daemon| (daemon.to_owned(), folder.join(daemon)));
    sources.extend(daemons.filter(|(_, path)| path.is_file()));
    Ok(sources.into_iter().map(|(name, path)| Source { name, path }).collect())
}

/// Checks every program, and reads its version and fingerprint.
fn check(sources: &[Source], signals: &Signals) -> Result<Vec<Program>> {
    let program = |source: &Source| {
        let ours = Ours { print: source.print()?, version: source.check(signals)? };
        Ok(Program { name: source.name.clone(), ours })
    };
    sources.iter().map(program).collect()
}

/// Writes the pending files and checks them. Names of one program become links of one file: it takes less space,
/// and bridge calls host-local without starting a process.
fn prepare(session: &Session, sources: &[Source], plan: &Plan) -> Result<()> {
    let folder = &session.folder;
    folder.create_pending()?;
    let mut files = BTreeMap::new();
    for swap in &plan.swaps {
        let Some(source) = sources.iter().find(|source| source.name == swap.name) else { continue };
        let pending = Source { name: swap.name.clone(), path: folder.pending(&swap.name) };
        let is_linked = files.get(&swap.after).is_some_and(|file| fs::hard_link(file, &pending.path).is_ok());
        // Some file systems have no hard links.
        if !is_linked {
            let path = source.path.display();
            copy::program(&source.path, &pending.path)
                .with_context(|| format!("cannot copy {path} into {}", folder.bin.display()))?;
            if pending.print()? != swap.after {
                bail!("{path} changed while it was being copied");
            }
            files.insert(swap.after.clone(), pending.path.clone());
        }
        pending.check(&session.signals)?;
    }
    Ok(())
}

/// Restores the files that the last installation replaced, or those from before Ferrule.
///
/// # Errors
/// No file has changed then.
pub fn restore(options: &Restore, back: Back) -> Result<Outcome> {
    let change = &options.change;
    let folder = Folder::new(&change.bin_dir, change.dry_run)?;
    Session::run(folder, Signals::catch()?, |session| {
        if !change.dry_run && session.folder.bin.is_dir() {
            session.lock(change.wait)?;
        }
        let folder = &session.folder;
        let manifest = folder.manifest()?;
        let shown = folder.bin.display().to_string();
        if back == Back::Last && manifest.last.is_empty() {
            bail!("there is no installation in {shown} to roll back");
        }
        if manifest.plugins.is_empty() {
            if let Some(wanted) = &change.plugins {
                note(format_args!("--plugins {}: none of them is installed", names::join(wanted)));
            }
            say(format_args!("Nothing to do: Ferrule is not installed in {shown}."));
            return Ok(Outcome::Done);
        }
        let mut names = plan::select(&manifest, back, change.plugins.as_ref())?;
        let mut present = folder.present(manifest.plugins.keys())?;
        if change.dry_run {
            foresee_undo(folder, &mut present)?;
        }
        let plan_of =
            |names: &Names| plan::restore(&manifest, back, names, &present, options.force, change.would());
        let mut plan = plan_of(&names);
        let user = plan.leaves(&manifest, chain::PLUGIN).then(|| chain::user(&options.conf_dir)).flatten();
        if let Some(user) = &user {
            note(format_args!(
                "{}: stays, because {} names it: no other project has this plugin. Call the command again when no pod and no \
                 configuration needs it; `{TOOL} chain --unfold` makes a list of plugins",
                chain::PLUGIN,
                user.display()
            ));
            // The way back is still needed.
            names.retain(|name| name != chain::PLUGIN && name != TOOL);
            plan = plan_of(&names);
        }
        for name in &plan.left {
            note(format_args!(
                "{name}: left alone, because it has changed since it was installed; --force restores it all the same"
            ));
        }
        plan.lines.iter().for_each(say);
        let mut host_ports = match manifest.plugins.get(host_ports::PLUGIN) {
            // Every name of our program can hand over, and so can this program if it is the same one.
            Some(portmap) if plan.leaves(&manifest, host_ports::PLUGIN) => {
                let ours = &portmap.ours.print;
                let names = manifest.plugins.iter().filter(|(_, plugin)| plugin.ours.print == *ours);
                let files = names.map(|(name, _)| folder.bin.join(name));
                HandOver::prepare(options.host_ports, ours, files.chain(["/proc/self/exe".into()]))?
            }
            _ => HandOver::default(),
        };
        if change.dry_run || !plan.settled.is_empty() {
            if !change.dry_run {
                exchange(session, &plan, &mut host_ports)?;
            }
            // For pods that started in the meantime.
            host_ports.stayed |= !host_ports.run(change.dry_run, &session.signals)?;
        }
        if plan.leaves(&manifest, index::PLUGIN) {
            for data_dir in index::list(&options.conf_dir, &options.data_dirs) {
                let shown = data_dir.join(index::INDEX).display().to_string();
                match if change.dry_run { Ok(()) } else { index::remove(&data_dir) } {
                    Ok(()) => say(format_args!("host-local: {}remove its index {shown}", change.would())),
                    Err(error) => note(format_args!(
                        "host-local: its index {shown} stays ({error}); it does no harm and can be deleted"
                    )),
                }
            }
        }
        if !change.dry_run && !plan.settled.is_empty() {
            say(format_args!("Done in {shown}: {}.", names::join(&plan.settled)));
        }
        Ok(if plan.left.is_empty() && user.is_none() && !host_ports.stayed {
            Outcome::Done
        } else {
            Outcome::Partly
        })
    })
}

fn exchange(session: &mut Session, plan: &Plan, host_ports: &mut HandOver) -> Result<()> {
    for Swap { name, after, .. } in &plan.swaps {
        session.folder.prepare_saved(name, after).with_context(|| format!("{name} cannot be put back"))?;
    }
    if !host_ports.run(false, &session.signals)? {
        bail!(
            "host ports of running pods cannot be handed over (see above), so nothing is put back; with \
             --host-ports keep they stay where they are"
        );
    }
    session.transact(plan.swaps.clone(), &plan.manifest)
}

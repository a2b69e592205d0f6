//! The commands that change the folder: install, rollback, uninstall.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::console::{note, say};
use crate::failure::{Failure, Step};
use crate::fingerprint::Fingerprint;
use crate::folder::Folder;
use crate::host_ports::{self, HandOver, HostPorts};
use crate::manifest::{Manifest, Ours};
use crate::plan::{self, Back, Plan, Present, Program};
use crate::program::Source;
use crate::session::Session;
use crate::signals::Signals;
use crate::{Contents, Outcome, Request, TOOL, copy, daemons_of, index, names};

/// Installs this program under the name of each plugin, or the programs of `request.from`.
///
/// # Errors
/// No file has changed then.
pub fn install(request: &Request, contents: Contents<'_>) -> Result<Outcome, Failure> {
    let sources = sources(request, contents)?;
    let folder = Folder::new(&request.bin_dir)?;
    folder.check(request.dry_run)?;
    let signals = Signals::block()?;
    let programs = check(&sources, &signals)?;
    Session::run(folder, signals, |session| {
        if !request.dry_run {
            session.create_folder()?;
            session.lock(request.wait)?;
        }
        let folder = &session.folder;
        let mut present = folder.present(programs.iter().map(|program| &program.name))?;
        if request.dry_run {
            foresee_undo(folder, &mut present)?;
        }
        let plan = plan::install(&folder.manifest()?, &programs, &present, request.would());
        plan.lines.iter().for_each(say);
        let shown = folder.bin.display().to_string();
        if plan.swaps.is_empty() {
            say(format_args!("Nothing to do in {shown}."));
            return Ok(Outcome::Done);
        }
        if !request.dry_run {
            stage(session, &sources, &plan)?;
            session.transact(&plan.swaps, &plan.manifest)?;
            let names = names::list(plan.swaps.iter().map(|swap| &swap.name));
            say(format_args!("Installed in {shown}: {names}."));
        }
        Ok(Outcome::Done)
    })
}

/// Changes `present` in a dry run to its state after an interrupted run has been undone.
fn foresee_undo(folder: &Folder, present: &mut BTreeMap<String, Present>) -> Result<(), Failure> {
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

/// The programs to install, by name. The tool comes along: it is needed for the way back. So does
/// the daemon of a plugin, if it is in the same folder.
fn sources(request: &Request, contents: Contents<'_>) -> Result<Vec<Source>, Failure> {
    let mut names: BTreeSet<String> = match &request.plugins {
        Some(value) => names::parse(value)?,
        None => contents.plugins.iter().map(|name| (*name).to_owned()).collect(),
    };
    let Some(from) = &request.from else {
        let is_known = |name: &str| name == TOOL || contents.plugins.contains(&name);
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            return Err(Failure::usage(format!("there is no plugin '{unknown}' in this program")));
        }
        names.insert(TOOL.to_owned());
        let here = std::env::current_exe().unwrap_or_default();
        let beside = |daemon: &str| Source { name: daemon.to_owned(), path: here.with_file_name(daemon) };
        let daemons = daemons_of(&names).into_iter().map(beside).filter(|daemon| daemon.path.is_file());
        return Ok(names.iter().map(|name| Source::this_program(name)).chain(daemons).collect());
    };
    if !from.is_dir() {
        return Err(Failure::new(format!("--from {}: there is no such folder", from.display())));
    }
    let from = fs::canonicalize(from).step(|| format!("cannot find {}", from.display()))?;
    if from.join(TOOL).is_file() {
        names.insert(TOOL.to_owned());
    }
    let daemons = daemons_of(&names).into_iter().filter(|daemon| from.join(daemon).is_file());
    names.extend(daemons.map(str::to_owned).collect::<Vec<_>>());
    Ok(names.iter().map(|name| Source::in_folder(&from, name)).collect())
}

/// Checks every program, and reads its version and fingerprint.
fn check(sources: &[Source], signals: &Signals) -> Result<Vec<Program>, Failure> {
    let mut prints: BTreeMap<(u64, u64), Fingerprint> = BTreeMap::new();
    let mut programs = Vec::new();
    for source in sources {
        source.check(signals)?;
        let file = source.open()?;
        let cannot_read = || format!("cannot read {}", source.path.display());
        let meta = file.metadata().step(cannot_read)?;
        let id = (std::os::unix::fs::MetadataExt::dev(&meta), std::os::unix::fs::MetadataExt::ino(&meta));
        let print = match prints.get(&id) {
            Some(print) => print.clone(),
            None => Fingerprint::of_file(file).step(cannot_read)?,
        };
        prints.insert(id, print.clone());
        let ours = Ours { print, version: source.version(signals)? };
        programs.push(Program { name: source.name.clone(), ours });
    }
    Ok(programs)
}

/// Writes the new files and checks them. Names of one program become links of one file: it takes less space,
/// and bridge calls host-local without starting a process.
fn stage(session: &Session, sources: &[Source], plan: &Plan) -> Result<(), Failure> {
    let folder = &session.folder;
    folder.create_staging()?;
    let mut files = BTreeMap::new();
    // Our files that stay.
    for (name, installed) in &plan.manifest.plugins {
        if !plan.swaps.iter().any(|swap| swap.name == *name) && folder.print(name)? == installed.ours.print {
            files.insert(installed.ours.print.clone(), folder.bin.join(name));
        }
    }
    for swap in &plan.swaps {
        let Some(source) = sources.iter().find(|source| source.name == swap.name) else { continue };
        let new = folder.staged(&swap.name);
        let is_linked = files.get(&swap.after).is_some_and(|file| fs::hard_link(file, &new).is_ok());
        // Some file systems have no hard links.
        if !is_linked {
            copy::program(&mut source.open()?, &new)
                .step(|| format!("cannot copy {} into {}", source.path.display(), folder.bin.display()))?;
            if Fingerprint::of_path(&new)? != swap.after {
                let path = source.path.display();
                return Err(Failure::new(format!("{path} changed while it was being copied")));
            }
            files.insert(swap.after.clone(), new.clone());
        }
        Source { path: new, ..source.clone() }.check(&session.signals)?;
    }
    Ok(())
}

/// Restores the files that the last installation replaced.
///
/// # Errors
/// No file has changed then.
pub fn roll_back(request: &Request) -> Result<Outcome, Failure> {
    go_back(request, Back::Last)
}

/// Restores the files from before Ferrule.
///
/// # Errors
/// No file has changed then.
pub fn uninstall(request: &Request) -> Result<Outcome, Failure> {
    go_back(request, Back::Original)
}

fn go_back(request: &Request, back: Back) -> Result<Outcome, Failure> {
    let wanted = request.plugins.as_deref().map(names::parse).transpose()?;
    let folder = Folder::new(&request.bin_dir)?;
    folder.check(request.dry_run)?;
    let signals = Signals::block()?;
    Session::run(folder, signals, |session| {
        if !request.dry_run && session.folder.bin.is_dir() {
            session.lock(request.wait)?;
        }
        let folder = &session.folder;
        let manifest = folder.manifest()?;
        let shown = folder.bin.display().to_string();
        if back == Back::Last && manifest.last.is_empty() {
            return Err(Failure::new(format!("there is no installation in {shown} to roll back")));
        }
        if manifest.plugins.is_empty() {
            if let Some(wanted) = &wanted {
                note(format_args!("--plugins {}: none of them is installed", names::list(wanted)));
            }
            say(format_args!("Nothing to do: Ferrule is not installed in {shown}."));
            return Ok(Outcome::Done);
        }
        let names = plan::select(&manifest, back, wanted.as_ref())
            .map_err(|name| Failure::new(format!("{name}: there is nothing to take back in {shown}")))?;
        let mut present = folder.present(manifest.plugins.keys())?;
        if request.dry_run {
            foresee_undo(folder, &mut present)?;
        }
        let plan = plan::restore(&manifest, back, &names, &present, request.force, request.would());
        for name in &plan.left {
            note(format_args!(
                "{name}: left alone, because it has changed since it was installed; --force restores it all the same"
            ));
        }
        plan.lines.iter().for_each(say);
        let leaves = |name| plan::leaves(&manifest, &plan, back, name);
        let mut host_ports = match leaves(host_ports::PLUGIN) {
            true => prepare_hand_over(request.host_ports, folder, &manifest)?,
            false => HandOver::nothing(),
        };
        let indexes = match leaves(index::PLUGIN) {
            true => index::data_dirs(&request.conf_dir, &request.data_dirs),
            false => BTreeSet::new(),
        };
        let shown_index =
            |path: &Path| format!("host-local: {}remove its index {}", request.would(), path.display());
        if request.dry_run {
            let has_worked = host_ports.run(true, &session.signals)?;
            host_ports.stayed |= !has_worked;
            index::existing(&indexes).iter().for_each(|path| say(shown_index(path)));
        } else if !plan.settled.is_empty() {
            carry_out(session, &plan, &mut host_ports)?;
            index::remove_all(&indexes).iter().for_each(|path| say(shown_index(path)));
            say(format_args!("Done in {shown}: {}.", names::list(&plan.settled)));
        }
        Ok(if plan.left.is_empty() && !host_ports.stayed { Outcome::Done } else { Outcome::Partly })
    })
}

/// Every name of our program can hand over, and so can this program if it is the same one.
fn prepare_hand_over(to: HostPorts, folder: &Folder, manifest: &Manifest) -> Result<HandOver, Failure> {
    let Some(portmap) = manifest.plugins.get(host_ports::PLUGIN) else { return Ok(HandOver::nothing()) };
    let names = manifest.plugins.iter().filter(|(_, plugin)| plugin.ours.print == portmap.ours.print);
    let files = names.map(|(name, _)| folder.bin.join(name));
    HandOver::prepare(to, &portmap.ours.print, files.chain(["/proc/self/exe".into()]))
}

fn carry_out(session: &mut Session, plan: &Plan, host_ports: &mut HandOver) -> Result<(), Failure> {
    for swap in &plan.swaps {
        let staged = session.folder.stage_saved(&swap.name, &swap.after);
        staged.map_err(|failure| Failure {
            message: failure.message.map(|why| format!("{} cannot be put back: {why}", swap.name)),
            ..failure
        })?;
    }
    if !host_ports.run(false, &session.signals)? {
        return Err(Failure::new(
            "host ports of running pods cannot be handed over (see above), so nothing is put back; with \
             --host-ports keep they stay where they are",
        ));
    }
    session.transact(&plan.swaps, &plan.manifest)?;
    let has_worked = host_ports.run(false, &session.signals)?;
    host_ports.stayed |= !has_worked;
    Ok(())
}

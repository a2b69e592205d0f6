//! For operators: whose every address, host port, rule and link of a node is, and what belongs to nothing alive.
//!
//! [`sight`] tells whether this process sees the whole node. [`node`] reads it: libcni's [`cache`], the namespaces and processes
//! of [`scene`], and the objects, by the readers in [`read`]. No reader knows a format: the plugins' libraries list their own
//! objects. They return a [`model`].
//! [`alive`] decides whether an owner is alive, [`gc`] removes what dead owners have left. [`view`] makes rows, [`table`]
//! prints them, [`json`] writes the same as JSON. [`check`] runs CHECK for all attachments, [`doctor`] finds what the node
//! lacks; both start plugins by [`process`].
//!
//! [`calls`] reads the log of calls.
//!
//! [`alive`], [`base64`], [`model`], [`table`], [`text`] and [`view`] ask neither the kernel nor the disk.

#![deny(missing_docs)]

pub mod alive;
pub mod base64;
pub mod cache;
pub mod calls;
pub mod check;
pub mod doctor;
pub mod gc;
pub mod json;
pub mod model;
pub mod named;
pub mod node;
pub mod process;
pub mod read;
pub mod scene;
pub mod sight;
pub mod table;
pub mod terminal;
pub mod text;
pub mod view;
mod why;

use std::time::SystemTime;

use cni_common::spec::CniError;

use alive::State;
use gc::Outcome;
use model::{Object, Sockets};
use node::{Node, Roots};
use table::Style;
use view::{Shown, View};

/// Reads the node and prints a view, as a table or as JSON. Also returns what could not be read.
///
/// # Errors
/// The kernel does not list the links.
pub fn inspect(
    roots: &Roots,
    view: &View,
    style: Style,
    as_json: bool,
) -> Result<(String, Vec<String>), CniError> {
    let mut node = Node::read(roots, &mut Sockets::open()?, matches!(view, View::Links | View::Why(_)))?;
    let states = node.states();
    if node.has_doubt(&states) {
        node.failures.extend(node.unseen());
    }
    let leaks = node.leaks_of(&states);
    let shown = Shown { node: &node, states: &states, leaks: &leaks, now: SystemTime::now() };
    let text = match as_json {
        true => json::text(&json::document(&shown, view)),
        false => shown.text(view, style),
    };
    Ok((text, node.failures))
}

/// The outcomes of CHECK as text, failed ones first, or as JSON.
pub fn report(checked: &check::Checked, as_json: bool) -> String {
    use check::Outcome::{Failed, Skipped, Sound};
    if as_json {
        return json::text(&json::checks(checked));
    }
    let (mut failed, mut skipped, mut sound) = (Vec::new(), Vec::new(), 0);
    for (owner, outcome) in &checked.outcomes {
        match outcome {
            Failed(why) => failed.push(format!("failed: {owner}: {why}\n")),
            Skipped(why) => skipped.push(format!("skipped: {owner}: {why}\n")),
            Sound => sound += 1,
        }
    }
    let unread: Vec<String> = checked.failures.iter().map(|why| format!("{why}\n")).collect();
    let lines = [failed.as_slice(), &skipped, &unread].concat().concat();
    format!("{lines}{sound} sound, {} failed, {} skipped\n", failed.len(), skipped.len())
}

/// Lists the leaks and, unless it is a dry run, removes them. `say` gets each line. Returns whether nothing failed.
///
/// # Errors
/// Something could not be read: a sign of life may be missing, so nothing is removed.
pub fn collect(roots: &Roots, dry_run: bool, say: &mut dyn FnMut(String)) -> Result<bool, CniError> {
    let mut sockets = Sockets::open()?;
    let mut node = Node::read(roots, &mut sockets, false)?;
    if let Some(failure) = node.unseen().or_else(|| node.failures.first().cloned()) {
        return Err(CniError::internal(format!("nothing is removed: {failure}")));
    }
    let states = node.states();
    if let Some(unseen) = node.unseen().filter(|_| node.has_doubt(&states)) {
        return Err(CniError::internal(format!("nothing is removed: {unseen}")));
    }
    let leaks = node.leaks_of(&states);
    let (mut removed, mut failed) = (0, 0);
    for leak in &leaks {
        let object = &node.objects[leak.object];
        let what = format!("{} {} of {}", object.kind.as_str(), object.name, object.owner);
        let place = object.place.clone();
        if dry_run {
            say(format!("would remove {what} in {place}: {}", leak.proof));
            continue;
        }
        match gc::remove(&mut node, &mut sockets, leak) {
            Outcome::Removed => {
                removed += 1;
                say(format!("removed {what} in {place}: {}", leak.proof));
            }
            Outcome::Gone => say(format!("already gone: {what}")),
            Outcome::Kept(why) => say(format!("kept {what}: {why}")),
            Outcome::Failed(error) => {
                failed += 1;
                say(format!("cannot remove {what}: {error}"));
            }
        }
    }
    say(match dry_run {
        true => format!("{} leaks; ferrule gc --yes removes them", leaks.len()),
        false => format!("{removed} of {} leaks removed", leaks.len()),
    });
    let is_undecided =
        |(state, object): (&State, &Object)| matches!(state, State::Unknown(_)) && object.removal.is_some();
    let undecided = states.iter().zip(&node.objects).filter(|pair| is_undecided(*pair)).count();
    let has_cache = node.evidence.cache.is_readable || undecided == 0;
    if !has_cache {
        say(format!(
            "{undecided} objects stay: there is no folder of cached results at {}",
            roots.results.display()
        ));
    }
    Ok(failed == 0 && has_cache)
}

//! `ferrule gc`: removes the leaks.

use cni_common::spec::CniError;

use crate::line::Line;
use crate::model::{self, Object, Sockets, State};
use crate::node::{Node, Roots};
use crate::totals;

/// Lists the leaks and, unless it is a dry run, removes them by their plugins' code. A plugin asks under its lock, or at the generation
/// of the ruleset, whether the owner is still dead, and gets an answer from evidence that is read again. `say` gets each line. Returns
/// whether nothing failed.
///
/// # Errors
/// Something could not be read: a sign of life may be missing, so nothing is removed.
pub fn collect(roots: &Roots, dry_run: bool, say: &mut dyn FnMut(Line)) -> Result<bool, CniError> {
    let refuse = |why: String| Err(CniError::internal(format!("nothing is removed: {why}")));
    let mut sockets = Sockets::open()?;
    let mut node = Node::read(roots, &mut sockets, false)?;
    if let Some(failure) = node.unseen().or_else(|| node.failures.first().cloned()) {
        return refuse(failure);
    }
    node.judge();
    if let Some(unseen) = node.unseen().filter(|_| node.has_doubt()) {
        return refuse(unseen);
    }
    let is_undecided = |object: &&Object| object.may_be_leak() && matches!(object.state, State::Unknown(_));
    let undecided = node.objects.iter().filter(is_undecided).count();
    let leaks = node.leaks();
    let (mut removed, mut failed) = (0, 0);
    for leak in &leaks {
        let Object { kind, name, owner, place, state, .. } = &node.objects[*leak];
        let what = format!("{} {name} of {owner}", model::name(kind));
        let proven = format!("{what} in {place}: {}", state.reason());
        if dry_run {
            say(Line::new(format_args!("would remove {proven}")));
            continue;
        }
        let mut kept = None;
        let removal = node.objects[*leak].removal.take();
        let outcome = removal.map_or(Ok(false), |remove| {
            remove(&mut sockets, &mut || match node.state_now(*leak) {
                State::Dead(_) => true,
                State::Alive(why) | State::Unknown(why) => {
                    kept = Some(why);
                    false
                }
            })
        });
        say(Line::new(match (outcome, kept) {
            (Ok(true), _) => {
                removed += 1;
                format!("removed {proven}")
            }
            (Ok(false), Some(why)) => format!("kept {what}: {why}"),
            (Ok(false), None) => format!("already gone: {what}"),
            (Err(error), _) => {
                failed += 1;
                format!("cannot remove {what}: {error}")
            }
        }));
    }
    say(Line::new(match dry_run {
        true => format!("{} leaks; ferrule gc --yes removes them", leaks.len()),
        false => format!("{removed} of {} leaks removed", leaks.len()),
    }));
    if !dry_run && let Err(why) = totals::add(&totals::GC, removed, failed) {
        say(Line::new(why));
    }
    let has_cache = node.evidence.cache.is_readable || undecided == 0;
    if !has_cache {
        let results = roots.results.display();
        say(Line::new(format_args!(
            "{undecided} objects stay: there is no folder of cached results at {results}"
        )));
    }
    Ok(failed == 0 && has_cache)
}

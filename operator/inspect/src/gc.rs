//! `ferrule gc`: removes the leaks.

mod shared;
mod stores;

use cni_common::spec::CniError;

use crate::line::Line;
use crate::model::{self, Object, Sockets, State};
use crate::node::{Node, Roots};
use crate::selftest;
use crate::totals;

/// What has become of a leak.
enum Outcome {
    /// It is removed.
    Removed,
    /// Another program has removed or replaced it.
    Gone,
    /// Its owner may be alive, and why.
    Kept(String),
    /// It could not be removed.
    Failed(String),
}

impl From<&Result<bool, CniError>> for Outcome {
    /// Of an answer whether something was removed.
    fn from(answer: &Result<bool, CniError>) -> Outcome {
        match answer {
            Ok(true) => Outcome::Removed,
            Ok(false) => Outcome::Gone,
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }
}

/// Lists the leaks and, unless it is a dry run, removes them by their plugins' code. A plugin asks under its lock, or at the generation
/// of the ruleset, whether the owner is still dead, and gets an answer from evidence that is read again: once for many of one kind, see
/// `shared` and, for addresses of host-local, `stores`. `say` gets each line. Returns whether nothing failed, and nothing was left out.
///
/// # Errors
/// Something could not be read that concerns all containers: a sign of life may be missing, so nothing is removed.
pub fn collect(roots: &Roots, dry_run: bool, say: &mut dyn FnMut(Line)) -> Result<bool, CniError> {
    let refuse = |why: String| Err(CniError::internal(format!("nothing is removed: {why}")));
    let mut sockets = Sockets::open()?;
    let former_test = selftest::left_over(roots)?;
    if let Some((_, left)) = &former_test {
        match dry_run {
            true => say(Line::new("would end the namespaces that a killed ferrule test has left")),
            false => left.end().map_err(CniError::internal)?,
        }
    }
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
    let (mut removed, mut failed, mut left_out) = (0, 0, node.left_out.clone());
    if dry_run {
        leaks
            .iter()
            .for_each(|leak| say(Line::new(format_args!("would remove {}", proven(&node.objects[*leak])))));
        say(Line::new(format_args!("{} leaks; ferrule gc --yes removes them", leaks.len())));
    } else {
        let mut tell = |node: &Node, leak: usize, outcome: Outcome| {
            let object = &node.objects[leak];
            say(Line::new(match outcome {
                Outcome::Removed => {
                    removed += 1;
                    format!("removed {}", proven(object))
                }
                Outcome::Kept(why) => format!("kept {}: {why}", named(object)),
                Outcome::Gone => format!("already gone: {}", named(object)),
                Outcome::Failed(error) => {
                    failed += 1;
                    format!("cannot remove {}: {error}", named(object))
                }
            }));
        };
        stores::release(&mut node, &leaks, &mut tell);
        shared::remove(&mut node, &mut sockets, &leaks, &mut tell);
        say(Line::new(format_args!("{removed} of {} leaks removed", leaks.len())));
        if let Some((_, left)) = former_test.filter(|_| failed == 0) {
            left.forget().map_err(CniError::internal)?;
        }
    }
    left_out
        .extend(node.left_out.iter().filter(|what| !left_out.contains(what)).cloned().collect::<Vec<_>>());
    let has_cache = node.evidence.cache.is_readable || undecided == 0;
    if !dry_run && let Err(why) = totals::add_gc(removed, failed, has_cache && left_out.is_empty()) {
        say(Line::new(why));
    }
    if !has_cache {
        let results = roots.results.display();
        say(Line::new(format_args!(
            "{undecided} objects stay: there is no folder of cached results at {results}"
        )));
    }
    if !left_out.is_empty() {
        say(Line::new(format_args!("left out: {}", left_out.join("; "))));
    }
    Ok(failed == 0 && has_cache && left_out.is_empty())
}

fn named(object: &Object) -> String {
    format!("{} {} of {}", model::name(&object.kind), object.name, object.owner)
}

fn proven(object: &Object) -> String {
    format!("{} in {}: {}", named(object), object.place, object.state.reason())
}

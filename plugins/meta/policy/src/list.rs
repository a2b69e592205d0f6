//! For the operator's tool: lists the announced pods, and removes one.

use std::collections::BTreeMap;

use cni_common::spec::CniError;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Element;

use crate::elements::{self, Found};
use crate::plan::label_of;

/// The elements of one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// The owner label; `None` if the ruleset was restored from text, which lacks it.
    pub label: Option<String>,
    /// The comment, which names the pod.
    pub comment: String,
    /// The elements.
    pub found: Vec<Found>,
}

/// Lists the announced pods.
///
/// # Errors
/// Code 999 if the kernel refuses to list a set.
pub fn announced(socket: &mut Socket) -> Result<Vec<Announced>, CniError> {
    let mut all: BTreeMap<(Option<String>, String), Vec<Found>> = BTreeMap::new();
    for found in elements::list(socket)? {
        all.entry(owner(&found.element)).or_default().push(found);
    }
    Ok(all.into_iter().map(|((label, comment), found)| Announced { label, comment, found }).collect())
}

fn owner(element: &Element) -> (Option<String>, String) {
    (label_of(element).map(str::to_owned), element.comment.clone().unwrap_or_default())
}

/// Removes the elements that still have these owners, for whom `are_dead` says so by one answer for each. Returns whether each had one.
///
/// # Errors
/// Code 999 if the kernel refuses a batch.
pub fn remove(
    socket: &mut Socket,
    announced: &[Announced],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let of_elements = || announced.iter().enumerate().flat_map(|(at, one)| one.found.iter().map(move |_| at));
    let (places, found): (Vec<usize>, Vec<Found>) =
        of_elements().zip(announced.iter().flat_map(|one| &one.found).cloned()).unzip();
    let is_same = |at: usize, now: &Element| {
        let one = &announced[places[at]];
        owner(now) == (one.label.clone(), one.comment.clone())
    };
    let mut of_owners = || {
        let dead = are_dead();
        places.iter().map(|at| dead.get(*at) == Some(&true)).collect()
    };
    let deleted = elements::delete(socket, &found, &is_same, &mut of_owners)?;
    let mut removed = vec![false; announced.len()];
    places.iter().zip(deleted).for_each(|(at, is_deleted)| removed[*at] |= is_deleted);
    Ok(removed)
}

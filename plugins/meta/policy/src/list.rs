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

/// Removes the elements that still have this owner, if `is_dead` says so. Returns whether there was one.
///
/// # Errors
/// Code 999 if the kernel refuses a batch.
pub fn remove(
    socket: &mut Socket,
    announced: &Announced,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let is_same = |now: &Element| owner(now) == (announced.label.clone(), announced.comment.clone());
    elements::delete(socket, &announced.found, &is_same, is_dead)
}

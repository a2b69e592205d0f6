//! Pods that `policy` has announced, and for which `ferrule-node` has not decided yet.

use std::collections::BTreeMap;

use cni_common::spec::CniError;
use ferrule_kernel::ip::from_octets;
use ferrule_kit::owner;
use ferrule_policy::elements::shown;
use ferrule_policy::list::{Announced, announced};
use ferrule_policy_kit::table::{LINKS, TABLE};

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Shared, Sockets};

/// The elements of each owner. Without the owner metadata, as in a restored ruleset, the cached result with an address names it.
pub(super) fn undecided(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let found = announced(&mut sockets.netfilter)?;
    Ok(found.into_iter().map(|announced| object(announced, scene)).collect())
}

fn object(announced: Announced, scene: &Scene) -> Object {
    let elements = || announced.found.iter().map(|found| (found.set, found.element.key.as_slice()));
    let addresses: std::collections::BTreeSet<_> =
        elements().filter(|(set, _)| *set != LINKS).filter_map(|(_, key)| from_octets(key)).collect();
    let owner = match announced.label.as_deref() {
        Some(label) => owner::parse(label).map(Owner::from),
        None => addresses.iter().find_map(|address| scene.owner_of(*address)).cloned(),
    };
    let mut sets: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (set, key) in elements() {
        sets.entry(shown(set, key)).or_default().push(set);
    }
    let name = sets
        .iter()
        .map(|(what, sets)| format!("{what} in {}", sets.join(", ")))
        .collect::<Vec<_>>()
        .join("; ");
    let mut facts = BTreeMap::from([("pod", announced.comment.clone())]);
    facts.extend(announced.label.clone().map(|label| ("label", label)));
    let is_by_address = announced.label.is_none();
    let object = Object::new(
        Kind::Undecided,
        name,
        format!("table {TABLE}"),
        owner.unwrap_or_default(),
        Maker::Ferrule,
    );
    Object { addresses, facts, is_by_address, ..object }.removed_with(Shared::Undecided(announced))
}

//! What is in the table: who has entries, and which.

use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Element, Error, Expr, Rule, elements, find_elements, rules, sets};

use crate::owner::key_of;
use crate::plan::{Entry, Key, Realm};

use super::element::Found;
use super::layout::{OWNERS, TABLE};
use super::note;

/// The element of an owner, by the owner's label.
pub(super) fn owner(socket: &mut Socket, label: &str) -> Result<Option<Element>, Error> {
    let key = key_of(label);
    Ok(find_elements(socket, TABLE, &[(OWNERS, &key)])?.pop().flatten())
}

/// All entries of an owner whose element this is. Those at the `hints` are looked up; only if these are not all, the maps
/// are read.
pub(super) fn entries_of(
    socket: &mut Socket,
    label: &str,
    owner: &Element,
    hints: &[&Key],
) -> Result<Vec<Found>, Error> {
    let count = owner.metadata.as_deref().and_then(note::entries);
    if count.is_some_and(|count| count <= hints.len()) {
        let mut found: Vec<Found> = at(socket, hints)?.into_iter().flatten().collect();
        found.retain(|entry| entry.label == label);
        if count == Some(found.len()) {
            return Ok(found);
        }
    }
    entries(socket, |of| of == label)
}

/// The labels of all owners.
pub(super) fn owners(socket: &mut Socket) -> Result<Vec<String>, Error> {
    Ok(elements(socket, TABLE, OWNERS)?.into_iter().filter_map(|element| element.comment).collect())
}

/// The entries whose owner's label is asked for, in all realms.
pub(super) fn entries(socket: &mut Socket, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Found>, Error> {
    let mut found = Vec::new();
    for name in sets(socket, TABLE)? {
        let Some((realm, map)) = Realm::of_map(&name) else { continue };
        let read = elements(socket, TABLE, &name)?;
        found.extend(
            read.iter()
                .filter_map(|element| Found::read(&realm, &map, element))
                .filter(|entry| is_wanted(&entry.label)),
        );
    }
    Ok(found)
}

/// The entries of these keys; `None` where there is none.
pub(super) fn at(socket: &mut Socket, keys: &[&Key]) -> Result<Vec<Option<Found>>, Error> {
    let found = at_maps(socket, keys, true)?;
    let read = |(key, element): (&&Key, Option<Element>)| Found::read(&key.realm, &key.map(true), &element?);
    Ok(keys.iter().zip(found).map(read).collect())
}

/// The entries with what marks their connections.
pub(super) fn with_marks(socket: &mut Socket, found: Vec<Found>) -> Result<Vec<Entry>, Error> {
    let keys: Vec<&Key> = found.iter().map(|entry| &entry.key).collect();
    let marks = at_maps(socket, &keys, false)?;
    Ok(found.into_iter().zip(marks).map(|(entry, mark)| entry.with_mark(mark.as_ref())).collect())
}

/// Those of the keys that have something in the map of marks.
pub(super) fn marked<'k>(socket: &mut Socket, keys: &[&'k Key]) -> Result<Vec<&'k Key>, Error> {
    let found = at_maps(socket, keys, false)?;
    Ok(keys.iter().zip(found).filter(|(_, mark)| mark.is_some()).map(|(key, _)| *key).collect())
}

/// A chain's rules, none if there is no such chain; `None` for a rule that has steps of which none of ours consists.
pub(super) fn rules_of(socket: &mut Socket, chain: &str) -> Result<Vec<Option<Vec<Expr>>>, Error> {
    Ok(rules(socket, TABLE, chain)?.iter().map(Rule::decode).collect())
}

/// Whether the rules are these and no others.
pub(super) fn is_same(found: &[Option<Vec<Expr>>], wanted: &[Vec<Expr>]) -> bool {
    found.len() == wanted.len()
        && found.iter().zip(wanted).all(|(found, wanted)| found.as_ref() == Some(wanted))
}

fn at_maps(socket: &mut Socket, keys: &[&Key], dnat: bool) -> Result<Vec<Option<Element>>, Error> {
    let wanted: Vec<(String, Vec<u8>)> = keys.iter().map(|key| (key.map(dnat).name, key.encode())).collect();
    let wanted: Vec<(&str, &[u8])> = wanted.iter().map(|(map, key)| (map.as_str(), key.as_slice())).collect();
    find_elements(socket, TABLE, &wanted)
}

/// Whether exactly that address of the host has an entry for the host port of an entry for any address. What cannot be
/// found out counts as yes.
pub fn has_own(socket: &mut Socket, entry: &Entry, host_ip: std::net::IpAddr) -> bool {
    let key = Key { host_ip: Some(host_ip), ..entry.key.clone() };
    at(socket, &[&key]).map_or(true, |found| found.iter().any(Option::is_some))
}

//! Reads the table: owners, host ports and rules.

use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Element, Error, Expr, Rule, elements, find_elements, rules, sets};
use ferrule_kit::owner::key_of;

use crate::plan::{HostPort, Key, MapSet};

use super::element::DnatElement;
use super::layout::{OWNERS, TABLE};
use super::owner_metadata;

/// The element of the owner with this label.
pub(super) fn owner(socket: &mut Socket, label: &str) -> Result<Option<Element>, Error> {
    let key = key_of(label);
    Ok(find_elements(socket, TABLE, &[(OWNERS, &key)])?.pop().flatten())
}

/// An owner, and the elements of host ports.
pub struct Elements {
    /// The owner's element.
    pub owner: Option<Element>,
    /// The dnat element of each host port; `None` if it has none.
    pub(super) dnat: Vec<Option<DnatElement>>,
    /// The mark element of each host port.
    pub(super) marks: Vec<Option<Element>>,
}

/// Looks up an owner and the elements of these host ports at once.
pub(super) fn owner_and_elements(socket: &mut Socket, label: &str, keys: &[&Key]) -> Result<Elements, Error> {
    let owner = key_of(label);
    let maps = [true, false].map(|dnat| names(keys, dnat));
    let mut wanted = vec![(OWNERS, owner.as_slice())];
    wanted.extend(maps.iter().flatten().map(|(map, key)| (map.as_str(), key.as_slice())));
    let mut found = find_elements(socket, TABLE, &wanted)?.into_iter();
    let owner = found.next().flatten();
    let dnat = keys.iter().zip(found.by_ref().take(keys.len())).map(|(key, element)| decode(key, element));
    Ok(Elements { owner, dnat: dnat.collect(), marks: found.collect() })
}

/// All dnat elements of the owner with this label and this element. Looks up the `hints` first, and lists the
/// maps only if the owner has more host ports than that.
pub(super) fn dnat_elements_of(
    socket: &mut Socket,
    label: &str,
    owner: &Element,
    hints: &[&Key],
) -> Result<Vec<DnatElement>, Error> {
    let count = owner.metadata.as_deref().and_then(owner_metadata::host_port_count);
    if count.is_some_and(|count| count <= hints.len()) {
        let mut found: Vec<DnatElement> = look_up(socket, hints)?.into_iter().flatten().collect();
        found.retain(|element| element.label == label);
        if count == Some(found.len()) {
            return Ok(found);
        }
    }
    dnat_elements(socket, |other| other == label)
}

/// The labels of all owners.
pub(super) fn owners(socket: &mut Socket) -> Result<Vec<String>, Error> {
    Ok(elements(socket, TABLE, OWNERS)?.into_iter().filter_map(|element| element.comment).collect())
}

/// Lists all dnat maps. Returns the elements whose owner label `is_wanted` accepts.
pub(super) fn dnat_elements(
    socket: &mut Socket,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<DnatElement>, Error> {
    let mut found = Vec::new();
    for name in sets(socket, TABLE)? {
        let Some((map_set, map)) = MapSet::of_map(&name) else { continue };
        let read = elements(socket, TABLE, &name)?;
        found.extend(
            read.iter()
                .filter_map(|element| DnatElement::decode(&map_set, &map, element))
                .filter(|element| is_wanted(&element.label)),
        );
    }
    Ok(found)
}

/// The dnat element of each key, in order; `None` if a key has no element.
pub(super) fn look_up(socket: &mut Socket, keys: &[&Key]) -> Result<Vec<Option<DnatElement>>, Error> {
    let found = look_up_raw(socket, keys, true)?;
    Ok(keys.iter().zip(found).map(|(key, element)| decode(key, element)).collect())
}

fn decode(key: &Key, element: Option<Element>) -> Option<DnatElement> {
    DnatElement::decode(&key.map_set, &key.map(true), &element?)
}

/// Looks up the mark elements of these dnat elements.
pub(super) fn with_masquerades(socket: &mut Socket, found: Vec<DnatElement>) -> Result<Vec<HostPort>, Error> {
    let keys: Vec<&Key> = found.iter().map(|element| &element.key).collect();
    let marks = look_up_raw(socket, &keys, false)?;
    Ok(found.into_iter().zip(marks).map(|(dnat, mark)| dnat.with_mark(mark.as_ref())).collect())
}

/// The keys that have a mark element.
pub(super) fn with_mark_element<'k>(socket: &mut Socket, keys: &[&'k Key]) -> Result<Vec<&'k Key>, Error> {
    let found = look_up_raw(socket, keys, false)?;
    Ok(keys.iter().zip(found).filter(|(_, mark)| mark.is_some()).map(|(key, _)| *key).collect())
}

/// The rules of a chain, empty if the chain does not exist. A rule is `None` if it contains an expression
/// that [`Expr`] does not model.
pub(super) fn rules_of(socket: &mut Socket, chain: &str) -> Result<Vec<Option<Vec<Expr>>>, Error> {
    Ok(rules(socket, TABLE, chain)?.iter().map(Rule::decode).collect())
}

/// Whether the rules of a chain are exactly the wanted ones, in order.
pub(super) fn is_same(found: &[Option<Vec<Expr>>], wanted: &[Vec<Expr>]) -> bool {
    found.len() == wanted.len()
        && found.iter().zip(wanted).all(|(found, wanted)| found.as_ref() == Some(wanted))
}

/// The map and the encoded key of each host port.
fn names(keys: &[&Key], dnat: bool) -> Vec<(String, Vec<u8>)> {
    keys.iter().map(|key| (key.map(dnat).name, key.encode())).collect()
}

fn look_up_raw(socket: &mut Socket, keys: &[&Key], dnat: bool) -> Result<Vec<Option<Element>>, Error> {
    let wanted = names(keys, dnat);
    let wanted: Vec<(&str, &[u8])> = wanted.iter().map(|(map, key)| (map.as_str(), key.as_slice())).collect();
    find_elements(socket, TABLE, &wanted)
}

/// Whether another element maps the same port of exactly this host address, and so takes precedence over a
/// host port for any address. True if the lookup fails.
pub fn has_own(socket: &mut Socket, host_port: &HostPort, host_ip: std::net::IpAddr) -> bool {
    let key = Key { host_ip: Some(host_ip), ..host_port.key.clone() };
    look_up(socket, &[&key]).map_or(true, |found| found.iter().any(Option::is_some))
}

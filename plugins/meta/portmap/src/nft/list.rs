//! Reads the table: owners, host ports and rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{
    Element, Error, Expr, Generation, Rule, elements, find_elements, generation, rules, sets,
};
use ferrule_kit::boot::BootMark;
use ferrule_kit::owner::key_of;
use ferrule_kit::presence::Presence;

use crate::plan::{HostPort, Key};

use super::element::Owned;
use super::layout::{NETWORKS, OWNERS, TABLE};
use super::maps::Map;
use super::owner_metadata::{host_port_count, presence};
use super::pods::{self, Pod};

/// Finds elements of sets or maps by their encoded keys.
fn find_each(socket: &mut Socket, wanted: &[(String, Vec<u8>)]) -> Result<Vec<Option<Element>>, Error> {
    let wanted: Vec<(&str, &[u8])> = wanted.iter().map(|(map, key)| (map.as_str(), key.as_slice())).collect();
    find_elements(socket, TABLE, &wanted)
}

/// The dnat maps or the mark maps, and the encoded keys.
fn in_maps<'k>(keys: &'k [&Key], dnat: bool) -> impl Iterator<Item = (String, Vec<u8>)> + 'k {
    keys.iter().map(move |key| (key.map(dnat).name(), key.encode()))
}

/// Finds the element of the owner with this label.
pub(super) fn find_owner(socket: &mut Socket, label: &str) -> Result<Option<Element>, Error> {
    Ok(find_each(socket, &[(OWNERS.to_owned(), key_of(label))])?.pop().flatten())
}

/// Those of these labels that have an owner.
pub(super) fn present(socket: &mut Socket, labels: &[String]) -> Result<BTreeSet<String>, Error> {
    let wanted: Vec<_> = labels.iter().map(|label| (OWNERS.to_owned(), key_of(label))).collect();
    let found = find_each(socket, &wanted)?.into_iter().zip(labels);
    Ok(found.filter(|(element, _)| element.is_some()).map(|(_, label)| label.clone()).collect())
}

/// Finds the host port of each key, as if it had no masquerading.
pub(super) fn find(socket: &mut Socket, keys: &[&Key]) -> Result<Vec<Option<Owned>>, Error> {
    let found = find_each(socket, &in_maps(keys, true).collect::<Vec<_>>())?;
    Ok(found.into_iter().zip(keys).map(|(element, key)| decode(key, element)).collect())
}

fn decode(key: &Key, element: Option<Element>) -> Option<Owned> {
    Owned::decode(&key.map(true), &element?)
}

/// What the table has of a plan.
pub struct Present {
    /// The owner's element.
    pub owner: Option<Element>,
    /// Each host port of the plan.
    pub(super) host_ports: Vec<Option<Owned>>,
}

/// Finds an owner and these host ports with one round trip.
pub(super) fn find_present(socket: &mut Socket, label: &str, keys: &[&Key]) -> Result<Present, Error> {
    let owner = (OWNERS.to_owned(), key_of(label));
    let wanted = [owner].into_iter().chain(in_maps(keys, true)).chain(in_maps(keys, false));
    let mut found = find_each(socket, &wanted.collect::<Vec<_>>())?.into_iter();
    let owner = found.next().flatten();
    let mut host_ports: Vec<_> =
        found.by_ref().take(keys.len()).zip(keys).map(|(element, key)| decode(key, element)).collect();
    for (host_port, mark) in host_ports.iter_mut().zip(found) {
        host_port.iter_mut().for_each(|host_port| host_port.read_mark(mark.as_ref()));
    }
    Ok(Present { owner, host_ports })
}

/// The keys that have a mark element.
pub(super) fn marked<'k>(socket: &mut Socket, keys: &[&'k Key]) -> Result<Vec<&'k Key>, Error> {
    let found = find_each(socket, &in_maps(keys, false).collect::<Vec<_>>())?;
    Ok(keys.iter().zip(found).filter(|(_, mark)| mark.is_some()).map(|(key, _)| *key).collect())
}

/// Finds the mark elements of these host ports.
pub(super) fn with_marks(socket: &mut Socket, host_ports: Vec<Owned>) -> Result<Vec<Owned>, Error> {
    Ok(with_marks_and_pods(socket, host_ports, &[])?.0)
}

/// Finds the mark elements of these host ports and the pods at these addresses with one round trip.
pub(super) fn with_marks_and_pods(
    socket: &mut Socket,
    mut host_ports: Vec<Owned>,
    addresses: &[IpAddr],
) -> Result<(Vec<Owned>, Vec<Pod>), Error> {
    let keys: Vec<&Key> = host_ports.iter().map(|owned| &owned.host_port.key).collect();
    let wanted: Vec<_> = in_maps(&keys, false).chain(pods::keys(addresses)).collect();
    let mut found = find_each(socket, &wanted)?;
    let pods = pods::decode(found.split_off(host_ports.len()));
    host_ports.iter_mut().zip(found).for_each(|(owned, mark)| owned.read_mark(mark.as_ref()));
    Ok((host_ports, pods))
}

/// The state of the owner with this element, which has an address in `pods`. Without owner metadata, as after a restore of the
/// ruleset from its text, only the mark of another boot proves that it is gone.
pub(super) fn presence_of(owner: &Element, pods: &[Pod]) -> Presence {
    let is_before = || {
        let mut own = pods.iter().filter(|pod| owner.comment.as_ref() == Some(&pod.label)).peekable();
        let current = BootMark::current();
        own.peek().is_some() && own.all(|pod| pod.boot.is_before(current))
    };
    match &owner.metadata {
        Some(metadata) => presence(metadata),
        None if is_before() => Presence::Gone { is_missing: true },
        None => Presence::Unknown,
    }
}

/// All host ports of the owner with this label and this element, as if they had no masquerading. Finds those with the keys
/// `expected` first, and lists the maps only if the owner has more host ports than that.
pub(super) fn host_ports_of(
    socket: &mut Socket,
    label: &str,
    owner: &Element,
    expected: &[&Key],
) -> Result<Vec<Owned>, Error> {
    let count = owner.metadata.as_deref().and_then(host_port_count);
    if count.is_some_and(|count| count <= expected.len()) {
        let mut found: Vec<Owned> = find(socket, expected)?.into_iter().flatten().collect();
        found.retain(|owned| owned.label == label);
        if count == Some(found.len()) {
            return Ok(found);
        }
    }
    list_where(socket, |other| other == label)
}

/// Lists the host ports whose owner label `is_wanted` accepts, as if they had no masquerading.
pub(super) fn list_where(socket: &mut Socket, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Owned>, Error> {
    let mut found = Vec::new();
    for name in sets(socket, TABLE)? {
        let Some(map) = Map::of_dnat(&name) else { continue };
        let read = elements(socket, TABLE, &name)?;
        let owned = read.iter().filter_map(|element| Owned::decode(&map, element));
        found.extend(owned.filter(|owned| is_wanted(&owned.label)));
    }
    Ok(found)
}

/// Lists all host ports, sorted by owner label and key, as if they had no masquerading: that would take one request for each.
///
/// # Errors
/// Code 999 if the kernel refuses to list the table.
pub fn list(socket: &mut Socket) -> Result<Vec<Owned>, CniError> {
    let mut found = list_where(socket, |_| true).context(|| format!("list table {TABLE}"))?;
    found.sort_by(|a, b| (&a.label, &a.host_port.key).cmp(&(&b.label, &b.host_port.key)));
    Ok(found)
}

/// The labels of the owners with owner metadata.
pub(super) fn owners_with_metadata(socket: &mut Socket) -> Result<BTreeSet<String>, Error> {
    let owners = elements(socket, TABLE, OWNERS)?.into_iter();
    Ok(owners.filter(|owner| owner.metadata.is_some()).filter_map(|owner| owner.comment).collect())
}

/// Lists the labels of all owners, and whether their network namespaces exist.
///
/// # Errors
/// Code 999 if the kernel refuses to list the set.
pub fn list_owners(socket: &mut Socket) -> Result<Vec<(String, Presence)>, CniError> {
    let step = || format!("list table {TABLE}");
    let found = elements(socket, TABLE, OWNERS).context(step)?;
    let is_restored = found.iter().any(|owner| owner.metadata.is_none());
    let pods = if is_restored { pods::list(socket).context(step)? } else { Vec::new() };
    let state = |owner: Element| Some((owner.comment.clone()?, presence_of(&owner, &pods)));
    Ok(found.into_iter().filter_map(state).collect())
}

/// A host port with the conditions of its network: alternative sequences of expressions. Without conditions it has one empty
/// alternative.
pub struct Exported {
    /// The host port.
    pub host_port: HostPort,
    /// The conditions.
    pub conditions: Vec<Vec<Expr>>,
}

/// An owner label and its host ports, sorted by key.
pub type OwnerPorts = (String, Vec<Exported>);

/// Lists all owner labels with their host ports, sorted by label. The generation is that of the ruleset before the
/// listing.
///
/// # Errors
/// Code 999 if the kernel refuses to list the table.
pub fn list_by_owner(socket: &mut Socket) -> Result<(Generation, Vec<OwnerPorts>), CniError> {
    let step = || format!("list table {TABLE}");
    let generation = generation(socket).context(step)?;
    let found = list(socket)?;
    let found = with_marks(socket, found).context(step)?;
    let networks = rules(socket, TABLE, NETWORKS).context(step)?;
    let mut all: BTreeMap<String, Vec<Exported>> = BTreeMap::new();
    for Owned { label, host_port } in found {
        let conditions = host_port.key.map_set.chain().map_or(vec![Vec::new()], |chain| {
            let own = networks.iter().filter(|rule| rule.jump_target().as_deref() == Some(chain.as_str()));
            // Strip the two leading expressions, which test the family, and the trailing jump.
            own.filter_map(|rule| Some(rule.decode()?.get(2..)?.split_last()?.1.to_vec())).collect()
        });
        all.entry(label).or_default().push(Exported { host_port, conditions });
    }
    Ok((generation, all.into_iter().collect()))
}

/// The rules of a chain, empty if the chain does not exist. A rule is `None` if it contains an expression
/// that [`Expr`] does not model.
pub(super) fn rules_of(socket: &mut Socket, chain: &str) -> Result<Vec<Option<Vec<Expr>>>, Error> {
    Ok(rules(socket, TABLE, chain)?.iter().map(Rule::decode).collect())
}

/// Whether another element maps the same port of exactly this host address, and so takes precedence over a
/// host port for any address. True if that cannot be read.
pub fn has_own(socket: &mut Socket, host_port: &HostPort, host_ip: std::net::IpAddr) -> bool {
    let key = Key { host_ip: Some(host_ip), ..host_port.key.clone() };
    find(socket, &[&key]).map_or(true, |found| found.iter().any(Option::is_some))
}

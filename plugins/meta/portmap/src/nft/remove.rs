//! DEL and GC: remove host ports by owner.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Context as _, ValidAttachment};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Error, Rule, all_chains, chains, change, elements, rules, sets};
use ferrule_kernel::sorted;
use ferrule_kit::dead::confirmed_names;
use ferrule_kit::owner;

use crate::mark::Masquerade;
use crate::plan::{HostPort, Key};

use super::element::{self, Owned};
use super::layout::{NETWORKS, OWNERS, TABLE, from_rules};
use super::maps::Map;
use super::{list, pods, refused};

const STEP: &str = "remove host ports";
/// The cleanup of a GC adds nothing more to a batch with this many requests. One map set takes at most 70.
const CLEANUP_LIMIT: usize = Batch::ROOM / 3;

/// Removes the host ports of an attachment and returns them. The owner identifies them; `expected`, the host
/// ports of the configuration, only make it faster to find them.
///
/// # Errors
/// Code 999 if the kernel refuses a request; code 11 after 200 concurrent changes.
pub fn delete(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    expected: &[HostPort],
) -> Result<Vec<HostPort>, CniError> {
    let label = owner::label(owner);
    let targets = pods::targets(expected);
    let expected: Vec<&Key> = expected.iter().map(|host_port| &host_port.key).collect();
    let removed = remove(socket, &targets, &mut |socket| {
        let Some(element) = list::find_owner(socket, &label)? else { return Ok(None) };
        let found = list::host_ports_of(socket, &label, &element, &expected)?;
        Ok(Some((vec![label.clone()], found)))
    });
    removed.map(Option::unwrap_or_default)
}

/// Removes the host ports of those owners with these labels whom `are_dead` names, by one answer for each label. Returns whether
/// each was there and is removed, and all their host ports. `are_dead` is asked at a generation of the ruleset, and the kernel refuses
/// the batch after any change of it, such as an ADD.
///
/// # Errors
/// As [`delete`].
pub fn delete_dead(
    socket: &mut Socket,
    labels: &[String],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<(Vec<bool>, Vec<HostPort>), CniError> {
    let mut dead = BTreeSet::new();
    let removed = remove(socket, &[], &mut |socket| {
        dead = confirmed_names(labels, &list::present(socket, labels)?, are_dead);
        if dead.is_empty() {
            return Ok(None);
        }
        let found = list::list_where(socket, |label| dead.contains(label))?;
        Ok(Some((dead.iter().cloned().collect(), found)))
    })?;
    Ok((labels.iter().map(|label| dead.contains(label)).collect(), removed.unwrap_or_default()))
}

/// Removes the host ports of the network's attachments that are not valid, and returns them.
///
/// # Errors
/// As [`delete`].
pub fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<Vec<HostPort>, CniError> {
    let valid = Attachment::keys(network, valid, owner::label);
    let is_dead = |label: &str| owner::is_on(label, network) && !valid.contains(label);
    let removed = remove(socket, &[], &mut |socket| {
        let owners = elements(socket, TABLE, OWNERS)?.into_iter().filter_map(|element| element.comment);
        let dead: Vec<String> = owners.filter(|label| is_dead(label)).collect();
        if dead.is_empty() {
            return Ok(None);
        }
        Ok(Some((dead, list::list_where(socket, is_dead)?)))
    })?;
    delete_unused(socket)?;
    Ok(removed.unwrap_or_default())
}

/// The labels of owners, and all their host ports.
type ToRemove = (Vec<String>, Vec<Owned>);

/// Removes what `find` returns. `None` if that is nothing. The owners may also have had one of `addresses`.
fn remove(
    socket: &mut Socket,
    addresses: &[IpAddr],
    find: &mut dyn FnMut(&mut Socket) -> Result<Option<ToRemove>, Error>,
) -> Result<Option<Vec<HostPort>>, CniError> {
    let removed = change(socket, |socket, batch| {
        let Some((labels, found)) = find(socket)? else { return Ok(None) };
        let targets = pods::targets(found.iter().map(|owned| &owned.host_port));
        let addresses: Vec<IpAddr> =
            sorted(targets.into_iter().chain(addresses.iter().copied())).into_iter().collect();
        let (found, pods) = list::with_marks_and_pods(socket, found, &addresses)?;
        let host_ports: Vec<HostPort> = found.into_iter().map(|owned| owned.host_port).collect();
        element::delete_owned(batch, &labels, &host_ports);
        pods::delete(batch, pods.iter().filter(|pod| labels.contains(&pod.label)));
        delete_chains(socket, batch, &host_ports)?;
        Ok(Some(host_ports))
    });
    removed.map_err(refused(STEP))
}

/// Adds to the batch what deletes these owners with their host ports; with `all`, which means that there are
/// no other owners, what deletes the table.
///
/// # Errors
/// Code 999 if the kernel refuses to list the table.
pub fn delete_owned(
    socket: &mut Socket,
    batch: &mut Batch,
    labels: &[String],
    host_ports: &[HostPort],
    all: bool,
) -> Result<(), CniError> {
    if all {
        batch.delete_table(TABLE);
        return Ok(());
    }
    element::delete_owned(batch, labels, host_ports);
    let pods = pods::list(socket).context(|| format!("list table {TABLE}"))?;
    pods::delete(batch, pods.iter().filter(|pod| labels.contains(&pod.label)));
    Ok(())
}

/// Deletes the masquerading chains of container subnets that only these host ports use. If each container
/// has its own subnet, there is one chain for each container.
fn delete_chains(socket: &mut Socket, batch: &mut Batch, host_ports: &[HostPort]) -> Result<(), Error> {
    // How many elements and rules use each chain.
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for masquerade in host_ports.iter().filter_map(|host_port| host_port.masquerade.as_ref()) {
        if let Some(rules) = own_rules(masquerade) {
            *uses.entry(masquerade.chain_name()).or_insert(rules) += 1;
        }
    }
    let wanted: Vec<_> = uses.keys().map(|name| (TABLE, name.as_str())).collect();
    for ((name, uses), chain) in uses.iter().zip(chains(socket, &wanted)?) {
        if chain.is_some_and(|chain| chain.uses as usize == *uses) {
            batch.flush_chain(TABLE, name).delete_chain(TABLE, name);
        }
    }
    Ok(())
}

/// The number of rules in the masquerading chain of a container subnet; `None` for another chain.
fn own_rules(masquerade: &Masquerade) -> Option<usize> {
    masquerade.from.map(|_| from_rules(masquerade).len())
}

/// Deletes unused masquerading chains, the map sets of conditions without host ports, and pods without an owner. A repeated ADD with
/// another address leaves such a chain, a DEL of a version that does not know the maps of pods leaves such a pod. Objects that do not fit into one batch stay until the next GC; so do all after 200
/// concurrent changes.
fn delete_unused(socket: &mut Socket) -> Result<(), CniError> {
    let outcome = change(socket, |socket, batch| {
        delete_empty_map_sets(socket, batch)?;
        let pods = pods::list(socket)?;
        if !pods.is_empty() {
            let owners = elements(socket, TABLE, OWNERS)?.into_iter();
            let owners: BTreeSet<String> = owners.filter_map(|owner| owner.comment).collect();
            pods::delete(batch, pods.iter().filter(|pod| !owners.contains(&pod.label)));
        }
        for (name, chain) in all_chains(socket, TABLE)? {
            let rules = own_rules(&Masquerade::of_chain(&name));
            if batch.len() < CLEANUP_LIMIT && rules.is_some_and(|rules| chain.uses as usize <= rules) {
                batch.flush_chain(TABLE, &name).delete_chain(TABLE, &name);
            }
        }
        Ok(())
    });
    match outcome {
        Err(error) if !error.is_outdated() => Err(refused(STEP)(error)),
        _ => Ok(()),
    }
}

fn delete_empty_map_sets(socket: &mut Socket, batch: &mut Batch) -> Result<(), Error> {
    let names = sets(socket, TABLE)?;
    for map_set in sorted(names.iter().filter_map(|name| Some(Map::of_dnat(name)?.map_set))) {
        // The map sets without conditions always stay.
        let Some(chain) = map_set.chain() else { continue };
        let mut is_empty = true;
        for map in map_set.maps().iter().filter(|map| map.dnat) {
            is_empty &= elements(socket, TABLE, &map.name())?.is_empty();
        }
        if !is_empty || batch.len() >= CLEANUP_LIMIT {
            continue;
        }
        let jumps_to_it = |rule: &&Rule| rule.jump_target().is_some_and(|target| target == chain);
        for rule in rules(socket, TABLE, NETWORKS)?.iter().filter(jumps_to_it) {
            batch.delete_rule(TABLE, NETWORKS, rule.handle);
        }
        batch.flush_chain(TABLE, &chain).delete_chain(TABLE, &chain);
        for map in map_set.maps() {
            batch.delete_set(TABLE, &map.name());
        }
    }
    Ok(())
}

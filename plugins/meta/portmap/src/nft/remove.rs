//! DEL and GC: remove host ports by owner.

use cni_common::spec::{CniError, Code, Context, ValidAttachment};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Error, Rule, all_chains, chains, elements, generation, rules, sets};
use ferrule_kernel::sorted;
use ferrule_kit::owner;

use crate::mark::Masquerade;
use crate::plan::{HostPort, Key, MapSet};
use cni_common::plugin::Attachment;

use super::element::DnatElement;
use super::layout::{NETWORKS, TABLE, from_rules};
use super::{change, list, repeat};

const STEP: &str = "remove host ports";
/// The cleanup of a GC adds nothing more to a batch with this many requests. One map set takes at most 70.
const CLEANUP_LIMIT: usize = Batch::ROOM / 3;

/// Removes the host ports of an attachment and returns them. The owner identifies them; `hints`, the host
/// ports of the configuration, only make the lookup faster.
///
/// # Errors
/// Code 999 if the kernel refuses a request; code 11 after 200 concurrent changes.
pub fn delete(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    hints: &[HostPort],
) -> Result<Vec<HostPort>, CniError> {
    let label = owner::label(owner);
    let hints: Vec<&Key> = hints.iter().map(|host_port| &host_port.key).collect();
    remove(socket, &mut |socket| match list::owner(socket, &label)? {
        None => Ok(ToRemove::default()),
        Some(element) => {
            let found = list::dnat_elements_of(socket, &label, &element, &hints)?;
            Ok(ToRemove { owners: vec![label.clone()], found })
        }
    })
    .map(Option::unwrap_or_default)
}

/// Removes the owner with this label and its host ports, if `is_dead` says so; returns the host ports, and `None` if there is
/// no such owner or it is not dead. `is_dead` is asked at a generation of the ruleset, and the kernel refuses the batch after
/// any change of it, such as an ADD.
///
/// # Errors
/// As [`delete`].
pub fn delete_if(
    socket: &mut Socket,
    label: &str,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<Option<Vec<HostPort>>, CniError> {
    remove(socket, &mut |socket| {
        let found = list::dnat_elements(socket, |other| other == label)?;
        let owners: Vec<String> = list::owner(socket, label)?.map(|_| label.to_owned()).into_iter().collect();
        Ok(if !owners.is_empty() && is_dead() { ToRemove { owners, found } } else { ToRemove::default() })
    })
}

/// Removes the host ports of the network's attachments that are not valid, and returns them.
///
/// # Errors
/// As [`delete`].
pub fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<Vec<HostPort>, CniError> {
    let valid = Attachment::keys(network, valid, owner::label);
    let is_dead = |label: &str| owner::is_on(label, network) && !valid.contains(label);
    let removed = remove(socket, &mut |socket| {
        let mut owners = list::owners(socket)?;
        owners.retain(|label| is_dead(label));
        if owners.is_empty() {
            return Ok(ToRemove::default());
        }
        let found = list::dnat_elements(socket, is_dead)?;
        Ok(ToRemove { owners, found })
    })?;
    delete_unused(socket)?;
    Ok(removed.unwrap_or_default())
}

/// The labels of owners, and all their host ports.
#[derive(Default)]
struct ToRemove {
    owners: Vec<String>,
    found: Vec<DnatElement>,
}

/// Removes what `find` returns. `None` if that is nothing.
fn remove(
    socket: &mut Socket,
    find: &mut dyn FnMut(&mut Socket) -> Result<ToRemove, Error>,
) -> Result<Option<Vec<HostPort>>, CniError> {
    repeat(STEP, || {
        let generation = generation(socket).context(|| STEP)?;
        let ToRemove { owners, found } = find(socket).context(|| STEP)?;
        if owners.is_empty() {
            return Ok(Ok(None));
        }
        let host_ports = list::with_masquerades(socket, found).context(|| STEP)?;
        let mut batch = Batch::new();
        change::delete(&mut batch, &host_ports);
        change::delete_owners(&mut batch, &owners);
        delete_chains(socket, &mut batch, &host_ports).context(|| STEP)?;
        Ok(batch.commit_at(socket, generation).map(|()| Some(host_ports)))
    })
}

/// Deletes the masquerading chains of container subnets that only these host ports use. If each container
/// has its own subnet, there is one chain for each container.
fn delete_chains(socket: &mut Socket, batch: &mut Batch, host_ports: &[HostPort]) -> Result<(), Error> {
    let mut own: Vec<(String, u32, u32)> = Vec::new();
    for host_port in host_ports {
        let (Masquerade::From(network, mark), Some(name)) =
            (&host_port.masquerade, host_port.masquerade.chain_name())
        else {
            continue;
        };
        match own.iter_mut().find(|(chain, ..)| *chain == name) {
            Some((_, references, _)) => *references += 1,
            None => own.push((name, 1, count(&from_rules(*network, mark)))),
        }
    }
    let wanted: Vec<_> = own.iter().map(|(name, ..)| (TABLE, name.as_str())).collect();
    for ((name, references, rules), chain) in own.iter().zip(chains(socket, &wanted)?) {
        if chain.is_some_and(|chain| chain.uses == references + rules) {
            batch.flush_chain(TABLE, name).delete_chain(TABLE, name);
        }
    }
    Ok(())
}

fn count<T>(rules: &[T]) -> u32 {
    u32::try_from(rules.len()).unwrap_or(u32::MAX)
}

/// Deletes unused masquerading chains, and the map sets of conditions without host ports. A repeated ADD with
/// another address leaves such a chain. Objects that do not fit into one batch stay until the next GC; so do all after 200
/// concurrent changes.
fn delete_unused(socket: &mut Socket) -> Result<(), CniError> {
    let outcome = repeat(STEP, || {
        let generation = generation(socket).context(|| STEP)?;
        let mut batch = Batch::new();
        delete_empty_map_sets(socket, &mut batch).context(|| STEP)?;
        for (name, chain) in all_chains(socket, TABLE).context(|| STEP)? {
            if batch.len() < CLEANUP_LIMIT
                && let Masquerade::From(network, mark) = Masquerade::of_chain(&name)
                && chain.uses <= count(&from_rules(network, &mark))
            {
                batch.flush_chain(TABLE, &name).delete_chain(TABLE, &name);
            }
        }
        Ok(batch.commit_at(socket, generation))
    });
    outcome.or_else(|error| if error.code == Code::TryAgainLater { Ok(()) } else { Err(error) })
}

fn delete_empty_map_sets(socket: &mut Socket, batch: &mut Batch) -> Result<(), Error> {
    let names = sets(socket, TABLE)?;
    for map_set in sorted(names.iter().filter_map(|name| Some(MapSet::of_map(name)?.0))) {
        // The map sets without conditions always stay.
        let Some(chain) = map_set.chain() else { continue };
        let mut is_empty = true;
        for map in map_set.maps().iter().filter(|map| map.dnat) {
            is_empty &= elements(socket, TABLE, &map.name)?.is_empty();
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
            batch.delete_set(TABLE, &map.name);
        }
    }
    Ok(())
}

//! DEL and GC: an owner's entries go, found by nothing but the owner.

use cni_common::spec::{CniError, Code, Context, ValidAttachment};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Error, Rule, all_chains, chains, elements, generation, rules, sets};

use crate::mark::Masquerade;
use crate::owner;
use crate::plan::{Entry, Key, Realm};
use cni_common::plugin::Attachment;

use super::element::Found;
use super::layout::{NETWORKS, TABLE, from_rules};
use super::{TRIES, change, list};

const STEP: &str = "remove host ports";
/// How many requests of a sweep there are before it takes on nothing more; one realm is at most 70.
const SWEPT: usize = Batch::ROOM / 3;

/// Removes an attachment's entries and says which these were. They are found by their owner; `hints`, where they might
/// be, only make it faster.
///
/// # Errors
/// Code 999 with what the kernel refused.
pub fn delete(socket: &mut Socket, owner: &Attachment<'_>, hints: &[Entry]) -> Result<Vec<Entry>, CniError> {
    let label = owner::label(owner);
    let hints: Vec<&Key> = hints.iter().map(|entry| &entry.key).collect();
    remove(socket, |socket| match list::owner(socket, &label)? {
        None => Ok(Dead::default()),
        Some(element) => {
            let found = list::entries_of(socket, &label, &element, &hints)?;
            Ok(Dead { owners: vec![label.clone()], found })
        }
    })
}

/// Removes the entries of the network's attachments that are not among the valid ones, and says which these were.
///
/// # Errors
/// As [`delete`].
pub fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<Vec<Entry>, CniError> {
    let valid: Vec<String> =
        valid.iter().map(|valid| owner::label(&Attachment::valid(network, valid))).collect();
    let removed = remove(socket, |socket| {
        let mut owners = list::owners(socket)?;
        owners.retain(|label| owner::is_on(label, network) && !valid.contains(label));
        if owners.is_empty() {
            return Ok(Dead::default());
        }
        let found = list::entries(socket, |label| owners.iter().any(|dead| dead == label))?;
        Ok(Dead { owners, found })
    })?;
    sweep(socket)?;
    Ok(removed)
}

/// Whose entries go, and which these are.
#[derive(Default)]
struct Dead {
    owners: Vec<String>,
    found: Vec<Found>,
}

fn remove(
    socket: &mut Socket,
    dead: impl Fn(&mut Socket) -> Result<Dead, Error>,
) -> Result<Vec<Entry>, CniError> {
    for _ in 0..TRIES {
        let generation = generation(socket).context(|| STEP)?;
        let Dead { owners, found } = dead(socket).context(|| STEP)?;
        if owners.is_empty() {
            return Ok(Vec::new());
        }
        let entries = list::with_marks(socket, found).context(|| STEP)?;
        let mut batch = Batch::new();
        change::delete(&mut batch, &entries);
        change::delete_owners(&mut batch, &owners);
        delete_chains(socket, &mut batch, &entries).context(|| STEP)?;
        match batch.commit_at(socket, generation) {
            Err(error) if error.is_outdated() => {}
            outcome => return outcome.context(|| STEP).map(|()| entries),
        }
    }
    Err(CniError::new(Code::TryAgainLater, format!("{STEP}: the ruleset changes all the time")))
}

/// Deletes the chains of pod networks to which only these entries lead. Where each pod has a network of its own there is
/// one for each.
fn delete_chains(socket: &mut Socket, batch: &mut Batch, entries: &[Entry]) -> Result<(), Error> {
    let mut own: Vec<(String, u32, u32)> = Vec::new();
    for entry in entries {
        let (Masquerade::From(network, mark), Some(name)) =
            (&entry.masquerade, entry.masquerade.chain_name())
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

/// Deletes what nobody uses any more: the chains of pod networks to which nothing leads, of which a second ADD with another
/// address leaves one behind, and the realms of conditions that are empty. What does not fit into one batch is left to the
/// next GC.
fn sweep(socket: &mut Socket) -> Result<(), CniError> {
    for _ in 0..TRIES {
        let generation = generation(socket).context(|| STEP)?;
        let mut batch = Batch::new();
        sweep_realms(socket, &mut batch).context(|| STEP)?;
        for (name, chain) in all_chains(socket, TABLE).context(|| STEP)? {
            if batch.len() < SWEPT
                && let Masquerade::From(network, mark) = Masquerade::of_chain(&name)
                && chain.uses <= count(&from_rules(network, &mark))
            {
                batch.flush_chain(TABLE, &name).delete_chain(TABLE, &name);
            }
        }
        match batch.commit_at(socket, generation) {
            Err(error) if error.is_outdated() => {}
            outcome => return outcome.context(|| STEP),
        }
    }
    Ok(())
}

fn sweep_realms(socket: &mut Socket, batch: &mut Batch) -> Result<(), Error> {
    let mut realms: Vec<Realm> =
        sets(socket, TABLE)?.iter().filter_map(|name| Some(Realm::of_map(name)?.0)).collect();
    realms.sort();
    realms.dedup();
    for realm in realms {
        // The realms without conditions stay.
        let Some(chain) = realm.chain() else { continue };
        let mut is_empty = true;
        for map in realm.maps().iter().filter(|map| map.dnat) {
            is_empty &= elements(socket, TABLE, &map.name)?.is_empty();
        }
        if !is_empty || batch.len() >= SWEPT {
            continue;
        }
        let leads = |rule: &&Rule| rule.jump_target().is_some_and(|target| target == chain);
        for rule in rules(socket, TABLE, NETWORKS)?.iter().filter(leads) {
            batch.delete_rule(TABLE, NETWORKS, rule.handle);
        }
        batch.flush_chain(TABLE, &chain).delete_chain(TABLE, &chain);
        for map in realm.maps() {
            batch.delete_set(TABLE, &map.name);
        }
    }
    Ok(())
}

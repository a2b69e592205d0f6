//! ADD: one batch that only adds, and where that does not do, one that looks first.

use cni_common::spec::{CniError, Code, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Error, generation};

use crate::owner;
use crate::plan::{Entry, Key, Plan};
use cni_common::plugin::Attachment;

use super::element::Found;
use super::establish::{self, Conditions};
use super::gate::Gate;
use super::layout::TABLE;
use super::{TRIES, change, list, note};

const STEP: &str = "set up host ports";

/// Adds the plan's entries if all that they need is there, with this gate, and nothing stands in their way. Returns whether
/// it did.
///
/// # Errors
/// Code 999 with what the kernel refused.
pub fn try_add(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    netns: &str,
    plan: &Plan,
    gate: Gate,
) -> Result<bool, CniError> {
    if !establish::stands(socket, plan, gate).context(|| STEP)? {
        return Ok(false);
    }
    let mut batch = Batch::new();
    change::add(&mut batch, &owner::label(owner), netns, &plan.entries);
    match batch.commit(socket) {
        // Something of what this network needs is not there yet, or something of what is to be added is.
        Err(error) if error.is_not_found() || error.is_taken() => Ok(false),
        outcome => outcome.context(|| STEP).map(|()| true),
    }
}

/// Makes the plan's entries the owner's only ones and says which these are: a host port that leads to the same container
/// already, by way of another of its interfaces, is left there. Runtimes ask for all ports on each network of a container.
///
/// # Errors
/// Code 11 with the holder's name if somebody else who is alive has one of the host ports; 999 for what the kernel refused.
pub fn add(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    netns: &str,
    plan: &Plan,
    conditions: &[Conditions],
    gate: Gate,
) -> Result<Vec<Entry>, CniError> {
    for _ in 0..TRIES {
        match look_and_add(socket, owner, netns, plan, conditions, gate)? {
            Err(error) if error.is_outdated() => {}
            outcome => return outcome.context(|| STEP),
        }
    }
    Err(CniError::new(Code::TryAgainLater, format!("{STEP}: the ruleset changes all the time")))
}

/// The outer error is final, the inner one the kernel's answer to the batch, and the entries those that are the owner's then.
fn look_and_add(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    netns: &str,
    plan: &Plan,
    conditions: &[Conditions],
    gate: Gate,
) -> Result<Result<Vec<Entry>, Error>, CniError> {
    let label = owner::label(owner);
    let label = label.as_str();
    let generation = generation(socket).context(|| STEP)?;
    let mut batch = Batch::new();
    establish::establish(socket, &mut batch, plan, conditions, gate).context(|| STEP)?;
    let mut stale = Vec::new();
    if list::owner(socket, label).context(|| STEP)?.is_some() {
        stale = list::entries(socket, |of| of == label).context(|| STEP)?;
        change::delete_owners(&mut batch, &[label.to_owned()]);
    }
    let keys: Vec<&Key> = plan.entries.iter().map(|entry| &entry.key).collect();
    let held = list::at(socket, &keys).context(|| STEP)?.into_iter().flatten();
    let mut wanted = plan.entries.clone();
    for entry in held {
        if entry.label == label {
            // Somebody may have deleted the owner only.
            if !stale.contains(&entry) {
                stale.push(entry);
            }
            continue;
        }
        if !is_left_behind(socket, owner, plan, &entry)? {
            if !owner::is_of(&entry.label, owner.container_id) {
                return Err(taken(&entry));
            }
            eprintln!("host port {} stays with {}", entry.key, owner::describe(&entry.label));
            wanted.retain(|ours| ours.key != entry.key);
            continue;
        }
        eprintln!(
            "host port {} is taken over from {}, which is gone",
            entry.key,
            owner::describe(&entry.label)
        );
        stale.push(entry);
    }
    let stale = list::with_marks(socket, stale).context(|| STEP)?;
    change::delete(&mut batch, &stale);
    // Somebody may have deleted the one of two elements only.
    let orphans = list::marked(socket, &keys).context(|| STEP)?;
    let is_orphan = |key: &&Key| {
        wanted.iter().any(|ours| ours.key == **key) && !stale.iter().any(|entry| entry.key == **key)
    };
    for key in orphans.into_iter().filter(is_orphan) {
        batch.delete_elements(TABLE, &key.map(false).name, &[key.encode()]);
    }
    change::add(&mut batch, label, netns, &wanted);
    Ok(batch.commit_at(socket, generation).map(|()| wanted))
}

/// Whether nobody lives behind the entry any more: its address has been given to this container by the same network, its
/// owner is not on the list of owners, or the owner's namespace is gone.
fn is_left_behind(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    plan: &Plan,
    entry: &Found,
) -> Result<bool, CniError> {
    let is_ours = plan.entries.iter().any(|ours| ours.target.ip() == entry.target.ip());
    if is_ours && owner::is_on(&entry.label, owner.network) && !owner::is_of(&entry.label, owner.container_id)
    {
        return Ok(true);
    }
    let holder = list::owner(socket, &entry.label).context(|| STEP)?;
    Ok(holder.is_none_or(|holder| holder.metadata.is_some_and(|note| note::is_gone(&note))))
}

fn taken(entry: &Found) -> CniError {
    let holder = owner::describe(&entry.label);
    CniError::new(Code::TryAgainLater, format!("host port {} is held by {holder}", entry.key))
        .with_details(format!("it leads to {}", entry.target))
}

//! ADD: first a batch that only adds; if that is not possible, one that lists the table and replaces.

use cni_common::spec::{CniError, Code, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Error, Table, generation};
use ferrule_kit::owner;
use ferrule_kit::sandbox::Sandbox;

use crate::plan::{HostPort, Key, Plan, masquerades};
use cni_common::plugin::Attachment;

use super::element::DnatElement;
use super::establish::{self, Conditions};
use super::gate::Gate;
use super::layout::TABLE;
use super::remove::delete;
use super::{change, list, owner_metadata, repeat};

const STEP: &str = "set up host ports";

/// Looks whether the table is complete and has this gate, and whether any of the chains `others` exists.
///
/// # Errors
/// Code 999 if the kernel refuses a lookup.
pub fn look(
    socket: &mut Socket,
    plan: &Plan,
    gate: Gate,
    others: &[(Table<'_>, String)],
) -> Result<(bool, bool), CniError> {
    establish::look(socket, plan, gate, others).context(|| STEP)
}

/// Adds the plan's host ports to a complete table with a batch that only adds. Returns false, and changes nothing,
/// if a map of this network is missing, or if one of the host ports or the owner exists.
///
/// # Errors
/// Code 999 if the kernel refuses the batch for another reason.
pub fn add_only(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    netns: &str,
    plan: &Plan,
) -> Result<bool, CniError> {
    let mut batch = Batch::new();
    change::add(&mut batch, &owner::label(owner), netns, &plan.host_ports);
    match batch.commit(socket).inspect_err(|error| undo_lost(socket, owner, error)) {
        // ENOENT: a map or chain of this network is missing. EEXIST: the owner or a host port exists.
        Err(error) if error.is_not_found() || error.is_taken() => Ok(false),
        outcome => outcome.context(|| STEP).map(|()| true),
    }
}

/// Removes the owner's host ports if the answer to the batch that adds them is lost.
fn undo_lost(socket: &mut Socket, owner: &Attachment<'_>, error: &Error) {
    if error.source.is_answer_lost()
        && let Err(error) = delete(socket, owner, &[])
    {
        eprintln!("failed to undo the ADD: {error}");
    }
}

/// Completes the table and replaces the owner's host ports by those of the plan. Returns the host ports that
/// the owner has now. Runtimes request all ports of a container on each of its networks, so a host port that
/// another interface of the same container has stays there and is not returned.
///
/// # Errors
/// Code 11 with the name of the holder if another container has one of the host ports; code 11 after
/// 200 concurrent changes; code 999 if the kernel refuses a request.
pub fn replace(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    netns: &str,
    plan: &Plan,
    conditions: &[Conditions],
    gate: Gate,
) -> Result<Vec<HostPort>, CniError> {
    repeat(STEP, || replace_once(socket, owner, netns, plan, conditions, gate))
}

/// One attempt of [`replace`], for [`repeat`].
fn replace_once(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    netns: &str,
    plan: &Plan,
    conditions: &[Conditions],
    gate: Gate,
) -> Result<Result<Vec<HostPort>, Error>, CniError> {
    let label = owner::label(owner);
    let label = label.as_str();
    let generation = generation(socket).context(|| STEP)?;
    let mut stale = Vec::new();
    let is_repeated = list::owner(socket, label).context(|| STEP)?.is_some();
    if is_repeated {
        stale = list::dnat_elements(socket, |other| other == label).context(|| STEP)?;
    }
    let keys: Vec<&Key> = plan.host_ports.iter().map(|host_port| &host_port.key).collect();
    let existing = list::look_up(socket, &keys).context(|| STEP)?.into_iter().flatten();
    let mut wanted = plan.host_ports.clone();
    for element in existing {
        if element.label == label {
            // Not in `stale` if another program has deleted only the owner's element.
            if !stale.contains(&element) {
                stale.push(element);
            }
            continue;
        }
        let holder = owner::describe(&element.label);
        let sandbox = sandbox_of(socket, owner, plan, &element)?;
        if !matches!(sandbox, Sandbox::Gone { .. }) {
            if !owner::is_of(&element.label, owner.container_id) {
                return Err(taken(&element, sandbox));
            }
            eprintln!("host port {} stays with {holder}", element.key);
            wanted.retain(|host_port| host_port.key != element.key);
            continue;
        }
        eprintln!("taking over host port {} from {holder}, which no longer exists", element.key);
        stale.push(element);
    }
    let mut batch = Batch::new();
    // No chain for host ports that stay elsewhere: DEL looks only for those of its own host ports.
    establish::create_missing(socket, &mut batch, plan, &masquerades(&wanted), conditions, gate)
        .context(|| STEP)?;
    if is_repeated {
        change::delete_owners(&mut batch, &[label.to_owned()]);
    }
    let stale = list::with_masquerades(socket, stale).context(|| STEP)?;
    change::delete(&mut batch, &stale);
    // Mark elements without a dnat element, if another program has deleted only the latter.
    let marked = list::with_mark_element(socket, &keys).context(|| STEP)?;
    let is_orphan = |key: &&Key| {
        wanted.iter().any(|host_port| host_port.key == **key)
            && !stale.iter().any(|host_port| host_port.key == **key)
    };
    for key in marked.into_iter().filter(is_orphan) {
        batch.delete_elements(TABLE, &key.map(false).name, &[key.encode()]);
    }
    change::add(&mut batch, label, netns, &wanted);
    let committed = batch.commit_at(socket, generation);
    Ok(committed.inspect_err(|error| undo_lost(socket, owner, error)).map(|()| wanted))
}

/// The state of the container of an existing element. Gone if the element's network has now assigned its
/// target address to this container, if its owner is not in the set of owners, or if the owner's network
/// namespace is gone.
fn sandbox_of(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    plan: &Plan,
    element: &DnatElement,
) -> Result<Sandbox, CniError> {
    let gone = Sandbox::Gone { is_missing: true };
    let is_our_address = plan.host_ports.iter().any(|ours| ours.target.ip() == element.target.ip());
    if is_our_address
        && owner::is_on(&element.label, owner.network)
        && !owner::is_of(&element.label, owner.container_id)
    {
        return Ok(gone);
    }
    let Some(holder) = list::owner(socket, &element.label).context(|| STEP)? else {
        return Ok(gone);
    };
    Ok(holder.metadata.map_or(Sandbox::Unknown, |metadata| owner_metadata::sandbox(&metadata)))
}

fn taken(element: &DnatElement, sandbox: Sandbox) -> CniError {
    let holder = owner::describe(&element.label);
    let mut details = format!("the host port leads to {}", element.target);
    if sandbox == Sandbox::Unknown {
        details += "; this process cannot tell whether the container still exists, because another mount \
                    namespace has its network namespace: if it is gone, DEL of it or GC of its network \
                    frees the host port";
    }
    CniError::new(Code::TryAgainLater, format!("host port {} is held by {holder}", element.key))
        .with_details(details)
}

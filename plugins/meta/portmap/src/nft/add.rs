//! ADD: first a batch that only adds; if that is not possible, one that lists the table and replaces.

use std::collections::BTreeSet;

use cni_common::remark;
use cni_common::spec::{CniError, Code, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Error, change, sets};
use ferrule_kit::boot::BootMark;
use ferrule_kit::owner;
use ferrule_kit::presence::Presence;

use crate::mark::Masquerade;
use crate::plan::{HostPort, Key, Plan, masquerades};

use super::element::{self, Owned};
use super::layout::{TABLE, from_rules};
use super::owner_metadata::{UNFINISHED, is_unfinished};
use super::pods::{self, Pod};
use super::remove::delete;
use super::{Gate, establish, list, refused};

const STEP: &str = "set up host ports";

/// Who replaces host ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// ADD. IPAM has just given the container its addresses, and nothing may stay if it fails.
    Add,
    /// Repair of a running container. IPAM may have given its addresses to another one, and what stands stays if it fails.
    Repair {
        /// Whether other steps follow: CHECK refuses the host ports until [`finish`].
        is_unfinished: bool,
    },
}

/// Adds the plan's host ports, and the `missing` masquerading chains of container subnets, to a table that is ready, with a batch
/// that only adds. Returns false, and changes nothing, if a mark chain or a map of this network is missing, or if one of the
/// chains, one of the host ports or the owner exists.
///
/// # Errors
/// Code 999 if the kernel refuses the batch for another reason.
pub fn add_only(
    socket: &mut Socket,
    plan: &Plan<'_>,
    netns: &str,
    missing: &[Masquerade],
) -> Result<bool, CniError> {
    let mut batch = Batch::new();
    for masquerade in missing {
        let name = masquerade.chain_name();
        batch.add_new_chain(TABLE, &name);
        for rule in from_rules(masquerade) {
            batch.add_rule(TABLE, &name, &rule, None);
        }
    }
    element::add_owner(&mut batch, &plan.label, netns, plan.host_ports.len());
    element::add(&mut batch, &plan.label, &plan.host_ports);
    pods::add_of(&mut batch, &plan.label, pods::targets(&plan.host_ports));
    match batch.commit(socket).inspect_err(|error| undo_lost(socket, plan, error)) {
        // ENOENT: a map or chain of this network is missing. EEXIST: a chain, the owner, a host port or a pod at an address exists.
        Err(error) if error.is_not_found() || error.is_taken() => Ok(false),
        outcome => outcome.context(|| STEP).map(|()| true),
    }
}

/// Removes the owner's host ports if the answer to the batch that adds them is lost.
fn undo_lost(socket: &mut Socket, plan: &Plan<'_>, error: &Error) {
    if error.source.is_answer_lost()
        && let Err(error) = delete(socket, &plan.owner, &[])
    {
        remark!("failed to undo the ADD: {error}");
    }
}

/// Completes the table and replaces the owner's host ports by those of the plan. Returns the host ports that
/// the owner has now. Runtimes request all ports of a container on each of its networks, so a host port that
/// another interface of the same container has stays there and is not returned.
///
/// # Errors
/// Code 11 with the name of the owner if another container has one of the host ports; code 11 after
/// 200 concurrent changes; code 999 if the kernel refuses a request.
pub fn replace(
    socket: &mut Socket,
    plan: &Plan<'_>,
    netns: &str,
    gate: Gate,
    purpose: Purpose,
) -> Result<Vec<HostPort>, CniError> {
    let label = &plan.label;
    let replaced = change(socket, |socket, batch| {
        let mut stale = Vec::new();
        let present = list::find_owner(socket, label)?.map(|_| label.clone());
        if present.is_some() {
            stale = list::list_where(socket, |other| other == label)?;
        }
        let mut wanted = plan.host_ports.clone();
        if let Err(error) = sort_out(socket, plan, purpose, &mut wanted, &mut stale)? {
            return Ok(Err(error));
        }
        let sets = sets(socket, TABLE)?;
        let (former, unlisted) = pods(socket, &sets, label, &wanted, &stale)?;
        // No chain for host ports that stay elsewhere: DEL looks only for those of its own host ports.
        establish::create_missing(socket, batch, &sets, plan, &masquerades(&wanted), gate)?;
        let dnat: BTreeSet<&Key> = stale.iter().map(|owned| &owned.host_port.key).collect();
        // Mark elements may be there without a dnat element, if another program has deleted only the latter.
        let keys = dnat.iter().copied().chain(wanted.iter().map(|host_port| &host_port.key));
        let marks = list::marked(socket, &keys.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>())?;
        element::delete(batch, present.as_slice(), dnat, marks);
        let count = match purpose {
            Purpose::Repair { is_unfinished: true } => UNFINISHED,
            _ => wanted.len(),
        };
        element::add_owner(batch, label, netns, count);
        element::add(batch, label, &wanted);
        let (own, others): (Vec<Pod>, Vec<Pod>) = former.into_iter().partition(|pod| pod.label == *label);
        pods::delete(batch, &own);
        let mut addresses = pods::targets(&wanted);
        addresses.retain(|address| others.iter().all(|pod| pod.address != *address));
        pods::add_of(batch, label, addresses);
        pods::add(batch, &unlisted);
        Ok(Ok(wanted))
    });
    let undone = replaced.inspect_err(|error| match purpose {
        Purpose::Add => undo_lost(socket, plan, error),
        Purpose::Repair { .. } => {}
    });
    undone.map_err(refused(STEP))?
}

/// The pods at the addresses of host ports that come and go. In a table of a version without the maps of pods also those at the
/// addresses of all other host ports.
fn pods(
    socket: &mut Socket,
    sets: &[String],
    label: &str,
    wanted: &[HostPort],
    stale: &[Owned],
) -> Result<(Vec<Pod>, Vec<Pod>), Error> {
    let stale_ports = stale.iter().map(|owned| &owned.host_port);
    let former = pods::find(socket, &pods::targets(wanted.iter().chain(stale_ports)))?;
    if pods::MAPS.iter().all(|(map, _)| sets.iter().any(|set| set == map)) {
        return Ok((former, Vec::new()));
    }
    let mut unlisted: Vec<Pod> = Vec::new();
    let taken = pods::targets(wanted);
    let (is_recorded, current) = (list::owners_with_metadata(socket)?, BootMark::current());
    for other in list::list_where(socket, |other| other != label)? {
        let address = other.host_port.target.ip();
        if !taken.contains(&address) && unlisted.iter().all(|pod| pod.address != address) {
            // Without owner metadata nothing tells the boot.
            let boot = if is_recorded.contains(&other.label) { current } else { BootMark::default() };
            unlisted.push(Pod { address, label: other.label, boot });
        }
    }
    Ok((former, unlisted))
}

/// Ends a repair: from now on CHECK accepts the owner. `count` is that of its host ports.
///
/// # Errors
/// As [`replace`].
pub fn finish(socket: &mut Socket, plan: &Plan<'_>, netns: &str, count: usize) -> Result<(), CniError> {
    let finished = change(socket, |socket, batch| {
        if list::find_owner(socket, &plan.label)?.as_ref().is_some_and(is_unfinished) {
            element::delete(batch, std::slice::from_ref(&plan.label), [], []);
            element::add_owner(batch, &plan.label, netns, count);
        }
        Ok(())
    });
    finished.map_err(refused(STEP))
}

/// Checks that no other container has one of the plan's host ports. For a repair that does not make them in this table.
///
/// # Errors
/// Code 11 with the name of the owner; code 999 if the kernel refuses a request.
pub fn ensure_free(socket: &mut Socket, plan: &Plan<'_>) -> Result<(), CniError> {
    let (mut wanted, mut stale) = (plan.host_ports.clone(), Vec::new());
    let purpose = Purpose::Repair { is_unfinished: false };
    sort_out(socket, plan, purpose, &mut wanted, &mut stale).context(|| STEP)?
}

/// Sorts the host ports of the plan that exist already: moves those that are the owner's own or whose container is gone
/// to `stale`, and removes those that another interface of the container keeps from `wanted`. The inner error is that of a host port
/// that another container has.
fn sort_out(
    socket: &mut Socket,
    plan: &Plan<'_>,
    purpose: Purpose,
    wanted: &mut Vec<HostPort>,
    stale: &mut Vec<Owned>,
) -> Result<Result<(), CniError>, Error> {
    let keys: Vec<&Key> = plan.host_ports.iter().map(|host_port| &host_port.key).collect();
    for existing in list::find(socket, &keys)?.into_iter().flatten() {
        let (key, other) = (&existing.host_port.key, owner::describe(&existing.label));
        if existing.label != plan.label {
            let namespace = namespace_of(socket, plan, purpose, &existing)?;
            if matches!(namespace, Presence::Gone { .. }) {
                remark!("taking over host port {key} from {other}, which no longer exists");
            } else if owner::is_of(&existing.label, plan.owner.container_id) {
                remark!("host port {key} stays with {other}");
                wanted.retain(|host_port| host_port.key != *key);
                continue;
            } else {
                return Ok(Err(taken(&existing, namespace)));
            }
        }
        stale.push(existing);
    }
    Ok(Ok(()))
}

/// The state of the container of an existing host port. Gone if this is the ADD of a container to which its network has
/// now assigned its target address, if its owner is not in the set of owners, or if the owner's network
/// namespace is gone, also by a reboot.
fn namespace_of(
    socket: &mut Socket,
    plan: &Plan<'_>,
    purpose: Purpose,
    existing: &Owned,
) -> Result<Presence, Error> {
    let gone = Presence::Gone { is_missing: true };
    let (label, owner) = (&existing.label, &plan.owner);
    let is_our_address = purpose == Purpose::Add
        && plan.host_ports.iter().any(|ours| ours.target.ip() == existing.host_port.target.ip());
    if is_our_address && owner::is_on(label, owner.network) && !owner::is_of(label, owner.container_id) {
        return Ok(gone);
    }
    let Some(element) = list::find_owner(socket, label)? else { return Ok(gone) };
    let pods = match element.metadata {
        Some(_) => Vec::new(),
        None => pods::find(socket, &[existing.host_port.target.ip()])?,
    };
    Ok(list::presence_of(&element, &pods))
}

fn taken(existing: &Owned, namespace: Presence) -> CniError {
    let HostPort { key, target, .. } = &existing.host_port;
    let mut details = format!("the host port leads to {target}");
    if namespace == Presence::Unknown {
        details += "; this process cannot tell whether the container still exists, because another mount \
                    namespace has its network namespace, or because the ruleset was restored from its text: if it \
                    is gone, DEL of it or GC of its network frees the host port";
    }
    let other = owner::describe(&existing.label);
    CniError::new(Code::TryAgainLater, format!("host port {key} is held by {other}")).with_details(details)
}

//! The steps of each verb.

use std::path::Path;
use std::time::Instant;

use cni_common::plugin::{AddRequest, Attachment, DelRequest, GcRequest, StatusRequest};
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Code};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Family, probe};
use ferrule_kit::owner::is_on;
use ferrule_kit::remedy;
use ferrule_kit::socket::netfilter;
use ferrule_kit::steps::report_undo;
use ferrule_policy_kit::isolated::{self, PATH};
use ferrule_policy_kit::{Directions, Pod};

use crate::elements::{self, Found};
use crate::path;
use crate::plan::{Owner, Plan, label, label_of};
use crate::waiting;

/// ADD: isolates the pod in the directions of its namespace. Returns `prevResult`.
///
/// # Errors
/// Code 7 for a pod that the node cannot isolate, or the kernel's error. Nothing of the pod is then in the table.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let result = call.earlier_result()?;
    let Some(pod) = Pod::of(&call.env.args)? else { return Ok(result.clone()) };
    let (directions, read) = isolated::directions(Path::new(PATH), pod.namespace);
    if let Err(error) = read {
        remark!("{PATH}: {error}: the pod is isolated in both directions until ferrule-node has decided");
    }
    if directions.is_empty() {
        return Ok(result.clone());
    }
    let attachment = Attachment::from(call);
    let plan = Plan::new(&attachment, &pod, result, directions);
    if plan.keys.is_empty() {
        return Ok(result.clone());
    }
    path::check(&attachment, result)?;
    let mut socket = netfilter()?;
    let added = elements::add(&mut socket, &plan);
    let added = added.and_then(|()| waiting::drop_all(&plan, result, call.ifname));
    added.inspect_err(|_| report_undo(remove(&mut socket, &plan.owner)))?;
    Ok(result.clone())
}

/// CHECK: compares the table with what ADD has made. A pod without elements is released.
///
/// # Errors
/// The first object that is altered, lost, or another attachment's.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    match planned(call)? {
        Some(plan) => elements::check(&mut netfilter()?, &plan),
        None => Ok(()),
    }
}

/// Repair: makes the table's rules and lost elements again. A pod without elements stays released.
///
/// # Errors
/// Code 999 with the attachment that has an element of this one, or the kernel's error.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    match planned(call)? {
        Some(plan) => elements::repair(&mut netfilter()?, &plan),
        None => Ok(()),
    }
}

/// What ADD may have made; `None` for what is no pod.
fn planned(call: &AddRequest<'_>) -> Result<Option<Plan>, CniError> {
    let result = call.earlier_result()?;
    let pod = Pod::of(&call.env.args)?;
    Ok(pod.map(|pod| Plan::new(&Attachment::from(call), &pod, result, Directions::BOTH)))
}

/// DEL: removes the attachment's elements. Those of another one that has got the address since stay.
///
/// # Errors
/// Code 999 if the kernel refuses it.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let pod = Pod::of(&call.env.args).ok().flatten();
    let owner = Owner::new(&Attachment::from(call), pod.as_ref());
    let mut socket = netfilter()?;
    let began = Instant::now();
    if remove(&mut socket, &owner)? {
        socket.close_after_deletion(began.elapsed());
    }
    Ok(())
}

fn remove(socket: &mut Socket, owner: &Owner) -> Result<bool, CniError> {
    let mut found = elements::list(socket)?;
    found.retain(|Found { element, .. }| owner.owns(element));
    let is_own = |_, element: &_| owner.owns(element);
    Ok(elements::delete(socket, &found, &is_own, &mut || vec![true; found.len()])?.contains(&true))
}

/// GC: removes the elements of the network's attachments that are not valid.
///
/// # Errors
/// Code 999 if the kernel refuses it.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let network = call.config.name();
    let valid = Attachment::keys(network, call.valid, label);
    let is_dead = |label: &str| is_on(label, network) && !valid.contains(label);
    let mut socket = netfilter()?;
    let mut found = elements::list(&mut socket)?;
    found.retain(|Found { element, .. }| label_of(element).is_some_and(is_dead));
    let is_lost = |_, element: &_| label_of(element).is_some_and(is_dead);
    elements::delete(&mut socket, &found, &is_lost, &mut || vec![true; found.len()]).map(drop)
}

/// STATUS: checks that the kernel has nf_tables.
///
/// # Errors
/// Code 50 if it has not.
pub fn status(_: &StatusRequest<'_>) -> Result<(), CniError> {
    let unavailable = |why: String| CniError::new(Code::NotAvailable, why);
    let mut socket = netfilter().map_err(|error| unavailable(error.msg))?;
    probe(&mut socket, Family::Inet).map_err(|error| remedy::no_nf_tables(&error, "nf_tables nft_ct"))
}

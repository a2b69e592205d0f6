//! The steps of each verb.

use std::net::IpAddr;
use std::time::Instant;

use cni_common::plugin::{AddRequest, Attachment, DelRequest, GcRequest, StatusRequest};
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Code, Failures};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Family, Table, probe};
use ferrule_kit::remedy;
use ferrule_kit::socket::netfilter;
use ipnetwork::IpNetwork;

use crate::config::{Backend, Conf, has_mappings, not_chained};
use crate::nft::{self, Gate, Purpose};
use crate::plan::{self, HostPort, Plan};
use crate::{assigned, flows, iptables, kube_proxy, localhost, reference, services};

/// ADD: creates the host ports, enables connections from 127.0.0.0/8 and deletes stale flows. Returns
/// `prevResult`.
///
/// # Errors
/// The first step that failed. The owner then has no host ports.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let Some(result) = call.prev_result.clone() else {
        return Err(not_chained("must be called as chained plugin"));
    };
    let owner = Attachment::from(call);
    let addresses = assigned::addresses(call, &result);
    if conf.mappings.is_empty() {
        follow_services();
        drop_dead(None, &owner, addresses.iter().map(IpNetwork::ip));
        return Ok(result);
    }
    let plan = Plan::new(&conf, owner, addresses);
    for warning in &plan.warnings {
        remark!("{warning}");
    }
    // The others are looked up by the batch that adds the host ports.
    let is_target = |address: &IpAddr| {
        conf.backend == Backend::Nftables
            && plan.host_ports.iter().any(|host_port| host_port.target.ip() == *address)
    };
    let others = plan.addresses.iter().map(IpNetwork::ip).filter(|address| !is_target(address));
    if plan.host_ports.is_empty() {
        drop_dead(None, &owner, others);
        return Ok(result);
    }
    let mut socket = netfilter()?;
    drop_dead(Some(&mut socket), &owner, others);
    let added = match conf.backend {
        Backend::Nftables => {
            let (added, has_others) = add_to_nft(&mut socket, call, &conf, &plan)?;
            // Rules that another backend or the reference has for this container would take precedence.
            let deleted = if has_others { delete_from_others(&mut socket, &owner) } else { Ok(()) };
            deleted.map(|()| added)
        }
        Backend::Iptables => {
            follow_services();
            create_guard(&mut socket, iptables::mark_bit(&conf))?;
            let added = iptables::add(&mut socket, &conf, &owner, &plan.addresses);
            let added = added.and_then(|()| reference::delete(&mut socket, owner.container_id));
            let added = added.and_then(|_| nft::delete(&mut socket, &owner, &[]));
            added.map(|_| plan.host_ports.clone())
        }
    };
    let added = added.inspect_err(|_| undo(&mut socket, &owner))?;
    // The guard comes first: `route_localnet` must not be enabled without it.
    if let Some(container) = plan.from_loopback() {
        let enabled = localhost::enable(&result, call.ifname, container);
        enabled.inspect_err(|_| undo(&mut socket, &owner))?;
    }
    flows::delete_after_add(&mut socket, &added, nft::has_own);
    Ok(result)
}

/// Adds the host ports to our table, and returns them. If the table is ready and the host ports are free, as
/// nearly always, one read and one batch are enough. Also returns whether another backend or the reference has
/// chains that may have rules of this container.
fn add_to_nft(
    socket: &mut Socket,
    call: &AddRequest<'_>,
    conf: &Conf,
    plan: &Plan<'_>,
) -> Result<(Vec<HostPort>, bool), CniError> {
    let netns = call.sandbox.path();
    let is_ipvs = kube_proxy::is_ipvs();
    let mut gate = if is_ipvs { services::adapt(socket, Some(conf.services_bit))? } else { Gate::LOCAL };
    let (missing, has_others) = nft::look(socket, plan, gate, &others(&plan.owner))?;
    if let Some(missing) = missing
        && nft::add_only(socket, plan, netns, &missing)?
    {
        return Ok((plan.host_ports.clone(), has_others));
    }
    drop_dead(Some(socket), &plan.owner, plan.addresses.iter().map(IpNetwork::ip));
    // Outside of IPVS mode only `look` notices a gate that an earlier IPVS mode has left.
    if !is_ipvs {
        gate = services::adapt(socket, Some(conf.services_bit))?;
    }
    Ok((nft::replace(socket, plan, netns, gate, Purpose::Add)?, has_others))
}

/// The chains that may have rules of the container by another backend or by the reference.
pub(crate) fn others(owner: &Attachment<'_>) -> Vec<(Table<'static>, String)> {
    reference::chains().into_iter().chain(iptables::chains_of(owner)).collect()
}

/// Adapts the table to kube-proxy in a call without host ports, so that the ADD of any container notices that
/// kube-proxy has started in IPVS mode. An error is only logged: it does not concern this container.
fn follow_services() {
    if kube_proxy::is_ipvs()
        && let Err(error) = netfilter().and_then(|mut socket| services::adapt(&mut socket, None))
    {
        remark!("{error}");
    }
}

/// Drops the host ports of containers that are gone and that had one of these addresses. An error is only logged: it does not
/// concern the new container's host ports. Without a socket opens one.
fn drop_dead(socket: Option<&mut Socket>, owner: &Attachment<'_>, addresses: impl Iterator<Item = IpAddr>) {
    let addresses: Vec<IpAddr> = addresses.collect();
    if addresses.is_empty() {
        return;
    }
    let run = |socket: &mut Socket| {
        let dropped = nft::drop_dead(socket, owner, &addresses)?;
        flows::delete_after_removal(socket, &dropped);
        Ok::<_, CniError>(())
    };
    let outcome = match socket {
        Some(socket) => run(socket),
        None => netfilter().and_then(|mut socket| run(&mut socket)),
    };
    if let Err(error) = outcome {
        remark!("{error}");
    }
}

/// Deletes what iptables and the reference's nftables backend have for the container.
pub(crate) fn delete_from_others(socket: &mut Socket, owner: &Attachment<'_>) -> Result<(), CniError> {
    reference::delete(socket, owner.container_id)?;
    iptables::delete(socket, owner, false)
}

/// Creates the guard, and what clears this bit of marks from outside, unless it is there. A kernel without nf_tables gets no guard, as with the reference.
pub(crate) fn create_guard(socket: &mut Socket, bit: u8) -> Result<(), CniError> {
    if probe(socket, Family::Inet).is_err() {
        remark!("this kernel has no nf_tables: packets to 127.0.0.0/8 from other hosts are not dropped");
        return Ok(());
    }
    nft::create_guard(socket, bit)
}

fn undo(socket: &mut Socket, owner: &Attachment<'_>) {
    let undone = [nft::delete(socket, owner, &[]).map(drop), iptables::delete(socket, owner, true)];
    for error in undone.into_iter().filter_map(Result::err) {
        remark!("failed to undo the ADD: {error}");
    }
}

/// What CHECK and repair find requested: the configuration, `prevResult`, and the plan of its host ports.
pub(crate) type Requested<'a> = (Conf, &'a AddResult, Plan<'a>);

/// Reads a request of CHECK or repair. `None`: the container has no host ports.
pub(crate) fn requested<'a>(call: &'a AddRequest<'_>) -> Result<Option<Requested<'a>>, CniError> {
    let conf = Conf::read(call.config)?;
    let Some(result) = &call.prev_result else {
        return Err(not_chained("Required prevResult missing"));
    };
    if conf.mappings.is_empty() {
        return Ok(None);
    }
    let plan = Plan::new(&conf, Attachment::from(call), assigned::addresses(call, result));
    Ok((!plan.host_ports.is_empty()).then_some((conf, result, plan)))
}

/// CHECK: compares all objects of ADD with the plan.
///
/// # Errors
/// The first difference.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let Some((conf, result, plan)) = requested(call)? else { return Ok(()) };
    check_host_ports(&mut netfilter()?, &conf, &plan)?;
    plan.from_loopback().map_or(Ok(()), |container| localhost::check(result, call.ifname, container))
}

/// CHECK of everything except connections from 127.0.0.0/8.
pub(crate) fn check_host_ports(socket: &mut Socket, conf: &Conf, plan: &Plan<'_>) -> Result<(), CniError> {
    let owner = &plan.owner;
    let present = match conf.backend {
        Backend::Nftables => Some(nft::find(socket, plan)?),
        Backend::Iptables => None,
    };
    // The reference may have made the host ports, or this plugin with another backend.
    let has_owner = present.as_ref().is_some_and(|present| present.owner.is_some());
    if present.is_some() && !has_owner && reference::has(socket, owner.container_id)? {
        reference::check(socket, conf, plan)
    } else if let Some(present) = present
        && (has_owner || !iptables::has(socket, owner)?)
    {
        let gate = nft::check(socket, plan, present)?;
        services::check(socket, gate)
    } else {
        iptables::check(conf, owner, &plan.addresses)
    }
}

/// DEL: removes everything of the attachment, even with an invalid configuration.
///
/// # Errors
/// All steps that failed; every step is tried.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let owner = Attachment::from(call);
    let mut failures = Failures::default();
    let mut socket = netfilter()?;
    let mut configured = configured(call);
    let began = Instant::now();
    let mut removed = failures.keep(nft::delete(&mut socket, &owner, &configured)).unwrap_or_default();
    let taken = began.elapsed();
    removed.extend(failures.keep(reference::delete(&mut socket, owner.container_id)).unwrap_or_default());
    // Only the programs can read legacy tables. They are not started if the container has no mappings, or if
    // its host ports have been found already.
    let processes = removed.is_empty() && has_mappings(call.config);
    failures.keep(iptables::delete(&mut socket, &owner, processes));
    // A failure to adapt to kube-proxy must not fail the DEL.
    if (!removed.is_empty() || kube_proxy::is_ipvs())
        && let Err(error) = services::adapt(&mut socket, None)
    {
        remark!("{error}");
    }
    flows::delete_after_removal(&mut socket, &removed);
    configured.retain(|wanted| {
        !removed.iter().any(|removed| (&removed.key, removed.target) == (&wanted.key, wanted.target))
    });
    flows::delete_left(&mut socket, configured);
    socket.close_after_deletion(taken);
    failures.into_result()
}

/// The host ports of the configuration, empty if it is invalid. They include those of iptables rules, which
/// [`iptables::delete`] does not decode.
fn configured(call: &DelRequest<'_>) -> Vec<HostPort> {
    let (Ok(conf), Some(result)) = (Conf::read(call.config), &call.prev_result) else { return Vec::new() };
    // What ADD has made may be gone from the container.
    let addresses = plan::addresses(result, call.ifname, &mut |_| true);
    Plan::new(&conf, Attachment::from(call), addresses).host_ports
}

/// GC: removes everything of the network's attachments that are not valid.
///
/// # Errors
/// All steps that failed; every step is tried.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let mut socket = netfilter()?;
    let network = call.config.name();
    let mut removed = failures.keep(nft::gc(&mut socket, network, call.valid)).unwrap_or_default();
    removed.extend(failures.keep(reference::gc(&mut socket, call.valid)).unwrap_or_default());
    failures.keep(iptables::gc(&mut socket, network, call.valid));
    failures.keep(services::collect(&mut socket));
    flows::delete_after_removal(&mut socket, &removed);
    failures.into_result()
}

/// STATUS: checks that the backend is available.
///
/// # Errors
/// Code 50 if it is not, or the error of an invalid configuration.
pub fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let unavailable = |why: String| CniError::new(Code::NotAvailable, why);
    if conf.backend == Backend::Iptables {
        return iptables::available(IpFamily::V4)
            .map_err(|error| unavailable(error.to_string()).with_remedy(remedy::IPTABLES));
    }
    let mut socket = netfilter().map_err(|error| unavailable(error.msg))?;
    probe(&mut socket, Family::Inet)
        .map_err(|error| remedy::no_nf_tables(&error, "nf_tables nft_chain_nat nft_nat"))
}

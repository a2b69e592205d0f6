//! The steps of each verb.

use cni_common::plugin::{AddRequest, Attachment, DelRequest, GcRequest, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, Failures};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Family, probe};
use ferrule_kit::remedy;
use ferrule_kit::socket::netfilter;
use ipnetwork::IpNetwork;

use crate::address;
use crate::config::{Backend, Conf, has_mappings, not_chained};
use crate::nft::{self, Conditions, Gate};
use crate::plan::{HostPort, MapSet, Plan};
use crate::{flows, iptables, localhost, reference, services, survey};

/// What the configuration and `prevResult` request.
struct Requested {
    addresses: Vec<IpNetwork>,
    plan: Plan,
    conditions: Vec<Conditions>,
}

impl Requested {
    fn new(call: &AddRequest<'_>, conf: &Conf, result: &AddResult) -> Result<Self, CniError> {
        let network = call.config.name();
        let addresses = address::pick(result, call.ifname);
        let plan = Plan::new(conf, network, &addresses);
        let mut conditions = Vec::new();
        if conf.backend == Backend::Iptables {
            return Ok(Requested { addresses, plan, conditions });
        }
        for map_set in plan.map_sets().into_iter().filter(|map_set| map_set.id.is_some()) {
            let MapSet { family, .. } = map_set;
            // A comment cannot contain quotes.
            let text = format!("{network}: {}", conf.conditions[family as usize].join(" ").replace('"', ""));
            conditions.push(Conditions { map_set, alternatives: conf.matches(family)?, text });
        }
        Ok(Requested { addresses, plan, conditions })
    }
}

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
    if conf.mappings.is_empty() {
        follow_services();
        return Ok(result);
    }
    let Requested { addresses, plan, conditions } = Requested::new(call, &conf, &result)?;
    for warning in &plan.warnings {
        eprintln!("{warning}");
    }
    if plan.host_ports.is_empty() {
        return Ok(result);
    }
    let owner = Attachment::from(call);
    let mut socket = netfilter()?;
    let added = match conf.backend {
        Backend::Nftables => {
            let (added, has_others) = add_to_nft(&mut socket, call, &conf, &plan, &conditions)?;
            // Rules that another backend or the reference has for this container would take precedence.
            if has_others {
                delete_of_other_backends(&mut socket, &owner, true)
                    .inspect_err(|_| undo(&mut socket, &owner))?;
            }
            added
        }
        Backend::Iptables => {
            follow_services();
            iptables::add(&mut socket, &conf, &owner, &addresses)
                .inspect_err(|_| undo(&mut socket, &owner))?;
            delete_of_other_backends(&mut socket, &owner, false)
                .inspect_err(|_| undo(&mut socket, &owner))?;
            plan.host_ports.clone()
        }
    };
    // The guard comes first: `route_localnet` must not be enabled without it.
    if let Some(container) = plan.from_loopback() {
        let enabled = create_guard(&mut socket, conf.backend)
            .and_then(|()| localhost::enable(&result, call.ifname, container));
        enabled.inspect_err(|_| undo(&mut socket, &owner))?;
    }
    flows::delete_after_add(&mut socket, &added, nft::has_own);
    Ok(result)
}

/// Adds the host ports to our table, and returns them. If the table is complete and the host ports are free, as
/// nearly always, one lookup and one batch are enough. Also returns whether another backend or the reference has
/// chains that may have rules of this container.
fn add_to_nft(
    socket: &mut Socket,
    call: &AddRequest<'_>,
    conf: &Conf,
    plan: &Plan,
    conditions: &[Conditions],
) -> Result<(Vec<HostPort>, bool), CniError> {
    let (owner, netns) = (Attachment::from(call), call.sandbox.path());
    let adapt = |socket: &mut Socket| services::adapt(socket, Some(conf.services_bit));
    let is_ipvs = services::are_local();
    let mut gate = if is_ipvs { adapt(socket)? } else { Gate::Local };
    let others: Vec<_> = reference::chains().into_iter().chain(iptables::chains_of(&owner)).collect();
    let (is_complete, has_others) = nft::look(socket, plan, gate, &others)?;
    if is_complete && nft::add_only(socket, &owner, netns, plan)? {
        return Ok((plan.host_ports.clone(), has_others));
    }
    // Outside of IPVS mode only `look` notices a gate that an earlier IPVS mode has left.
    if !is_ipvs {
        gate = adapt(socket)?;
    }
    Ok((nft::replace(socket, &owner, netns, plan, conditions, gate)?, has_others))
}

/// Adapts the table to kube-proxy in a call without host ports, so that the ADD of any container notices that
/// kube-proxy has started in IPVS mode. An error is only logged: it does not concern this container.
fn follow_services() {
    if services::are_local()
        && let Err(error) = netfilter().and_then(|mut socket| services::adapt(&mut socket, None))
    {
        eprintln!("{error}");
    }
}

/// Deletes what the other backend and the reference's nftables backend have for the container.
fn delete_of_other_backends(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    by_nft: bool,
) -> Result<(), CniError> {
    reference::delete(socket, owner.container_id)?;
    if by_nft { iptables::delete(socket, owner, false) } else { nft::delete(socket, owner, &[]).map(drop) }
}

/// Creates the guard for the iptables backend; the nf_tables backend has created it with the host ports. A
/// kernel without nf_tables gets no guard, as with the reference.
fn create_guard(socket: &mut Socket, backend: Backend) -> Result<(), CniError> {
    match backend {
        Backend::Nftables => Ok(()),
        Backend::Iptables if probe(socket, Family::Inet).is_err() => {
            eprintln!(
                "this kernel has no nf_tables: packets to 127.0.0.0/8 from other hosts are not dropped"
            );
            Ok(())
        }
        Backend::Iptables => nft::create_guard(socket),
    }
}

fn undo(socket: &mut Socket, owner: &Attachment<'_>) {
    let undone = [nft::delete(socket, owner, &[]).map(drop), iptables::delete(socket, owner, true)];
    for error in undone.into_iter().filter_map(Result::err) {
        eprintln!("failed to undo the ADD: {error}");
    }
}

/// CHECK: compares all objects of ADD with the plan.
///
/// # Errors
/// The first difference.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let Some(result) = &call.prev_result else {
        return Err(not_chained("Required prevResult missing"));
    };
    if conf.mappings.is_empty() {
        return Ok(());
    }
    let Requested { addresses, plan, conditions } = Requested::new(call, &conf, result)?;
    if plan.host_ports.is_empty() {
        return Ok(());
    }
    let owner = Attachment::from(call);
    let mut socket = netfilter()?;
    match find_layout(&mut socket, &conf, &owner, &plan)? {
        Layout::Ours(found) => {
            let prerouting = nft::prerouting(&mut socket)?;
            services::check(&mut socket, prerouting.gate)?;
            nft::check(&mut socket, &owner, &plan, &conditions, found, &prerouting)?;
        }
        Layout::ReferenceNftables => reference::check(&mut socket, owner.container_id, &conf, &plan)?,
        Layout::Iptables => iptables::check(&conf, &owner, &addresses)?,
    }
    plan.from_loopback().map_or(Ok(()), |container| localhost::check(result, call.ifname, container))
}

/// The form in which a container's host ports exist.
enum Layout {
    /// Elements of our table, if there are any.
    Ours(nft::Elements),
    /// Rules of the reference's nftables backend.
    ReferenceNftables,
    /// Rules of iptables, by this plugin or by the reference.
    Iptables,
}

/// Finds the layout by looking up the container: another version or the reference may have made its host
/// ports. Without host ports, the layout is that of the configured backend.
fn find_layout(
    socket: &mut Socket,
    conf: &Conf,
    owner: &Attachment<'_>,
    plan: &Plan,
) -> Result<Layout, CniError> {
    if conf.backend == Backend::Iptables {
        return Ok(Layout::Iptables);
    }
    let found = nft::find(socket, owner, plan)?;
    if found.owner.is_some() {
        return Ok(Layout::Ours(found));
    }
    if reference::has(socket, owner.container_id)? {
        return Ok(Layout::ReferenceNftables);
    }
    let is_iptables = iptables::has(socket, owner)?;
    Ok(if is_iptables { Layout::Iptables } else { Layout::Ours(found) })
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
    let mut removed = failures.keep(nft::delete(&mut socket, &owner, &configured)).unwrap_or_default();
    removed.extend(failures.keep(reference::delete(&mut socket, owner.container_id)).unwrap_or_default());
    // Only the programs can read legacy tables. They are not started if the container has no mappings, or if
    // its host ports have been found already.
    let processes = removed.is_empty() && has_mappings(call.config);
    failures.keep(iptables::delete(&mut socket, &owner, processes));
    // A failure to adapt to kube-proxy must not fail the DEL.
    if (!removed.is_empty() || services::are_local())
        && let Err(error) = services::adapt(&mut socket, None)
    {
        eprintln!("{error}");
    }
    flows::delete_after_removal(&mut socket, &removed);
    configured.retain(|wanted| {
        !removed.iter().any(|removed| (&removed.key, removed.target) == (&wanted.key, wanted.target))
    });
    flows::delete_left(&mut socket, configured, survey::unmapped);
    failures.into_result()
}

/// The host ports of the configuration, empty if it is invalid. They include those of iptables rules, which
/// [`iptables::delete`] does not decode.
fn configured(call: &DelRequest<'_>) -> Vec<HostPort> {
    let (Ok(conf), Some(result)) = (Conf::read(call.config), &call.prev_result) else { return Vec::new() };
    Plan::new(&conf, call.config.name(), &address::pick(result, call.ifname)).host_ports
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
    probe(&mut socket, Family::Inet).map_err(|error| {
        let error = unavailable(format!("the kernel does not support nf_tables for inet: {error}"));
        error.with_remedy(remedy::modules("nf_tables nft_chain_nat nft_nat"))
    })
}

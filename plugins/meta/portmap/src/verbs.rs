//! What each verb does, step by step.

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, Context, Failures};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Family, probe};

use crate::address;
use crate::config::{Backend, Conf, has_mappings, not_chained};
use crate::nft::{self, Conditions, Gate};
use crate::plan::{Entry, Plan, Realm};
use crate::{flows, iptables, localhost, reference, services};
use cni_common::plugin::Attachment;
use ipnetwork::IpNetwork;

fn netfilter() -> Result<Socket, CniError> {
    Socket::netfilter().context(|| "open a netfilter socket")
}

/// What the configuration and the result before this plugin's come to.
struct Wanted {
    addresses: Vec<IpNetwork>,
    plan: Plan,
    conditions: Vec<Conditions>,
}

impl Wanted {
    fn new(call: &AddRequest<'_>, conf: &Conf, result: &AddResult) -> Result<Self, CniError> {
        let network = call.config.name();
        let addresses = address::pick(result, call.ifname);
        let plan = Plan::new(conf, network, &addresses);
        let mut conditions = Vec::new();
        if conf.backend == Backend::Iptables {
            return Ok(Wanted { addresses, plan, conditions });
        }
        for realm in plan.realms().into_iter().filter(|realm| realm.id.is_some()) {
            let Realm { v6, .. } = realm;
            // A comment cannot hold quotes.
            let text = format!("{network}: {}", conf.conditions[usize::from(v6)].join(" ").replace('"', ""));
            conditions.push(Conditions { realm, alternatives: conf.matches(v6)?, text });
        }
        Ok(Wanted { addresses, plan, conditions })
    }
}

/// ADD: the entries, then the way from loopback, then stale flows. The result is the one of the plugins before.
///
/// # Errors
/// The first step that failed; the owner has no entries then.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let Some(result) = call.prev_result.clone() else {
        return Err(not_chained("must be called as chained plugin"));
    };
    if conf.mappings.is_empty() {
        follow_services();
        return Ok(result);
    }
    let Wanted { addresses, plan, conditions } = Wanted::new(call, &conf, &result)?;
    for warning in &plan.warnings {
        eprintln!("{warning}");
    }
    if plan.entries.is_empty() {
        return Ok(result);
    }
    let owner = Attachment::from(call);
    let mut socket = netfilter()?;
    let added = match conf.backend {
        Backend::Nftables => {
            let added = add_to_nft(&mut socket, call, &conf, &plan, &conditions)?;
            // What another backend or program made for this container would come first.
            leave_others(&mut socket, &owner, true).inspect_err(|_| undo(&mut socket, &owner))?;
            added
        }
        Backend::Iptables => {
            follow_services();
            iptables::add(&mut socket, &conf, &owner, &addresses)
                .inspect_err(|_| undo(&mut socket, &owner))?;
            leave_others(&mut socket, &owner, false).inspect_err(|_| undo(&mut socket, &owner))?;
            plan.entries.clone()
        }
    };
    // After the guard: the switch must not be on without it.
    if let Some(pod) = plan.from_loopback() {
        let opened = guard(&mut socket, conf.backend).and_then(|()| localhost::open(&result, pod));
        opened.inspect_err(|_| undo(&mut socket, &owner))?;
    }
    flows::forget_before(&mut socket, &added, nft::has_own);
    Ok(result)
}

/// Adds the entries to our table: by one batch where the table is as it should be, as nearly always.
fn add_to_nft(
    socket: &mut Socket,
    call: &AddRequest<'_>,
    conf: &Conf,
    plan: &Plan,
    conditions: &[Conditions],
) -> Result<Vec<Entry>, CniError> {
    let (owner, netns) = (Attachment::from(call), call.sandbox.path());
    let adapt = |socket: &mut Socket| services::adapt(socket, Some(conf.services_bit));
    // Without kube-proxy in IPVS mode a wrong gate is noticed by the attempt.
    let gate = if services::are_local() { adapt(socket)? } else { Gate::Local };
    if nft::try_add(socket, &owner, netns, plan, gate)? {
        return Ok(plan.entries.clone());
    }
    let gate = adapt(socket)?;
    nft::add(socket, &owner, netns, plan, conditions, gate)
}

/// Adapts the table to what kube-proxy does, for a call that has nothing else to do here: so any pod's ADD or DEL notices
/// that kube-proxy has begun to run in IPVS mode. Its failure is not this pod's.
fn follow_services() {
    if services::are_local()
        && let Err(error) = netfilter().and_then(|mut socket| services::adapt(&mut socket, None))
    {
        eprintln!("{error}");
    }
}

/// Removes what the backend that is not in use, or the reference's nftables backend, has for the container.
fn leave_others(socket: &mut Socket, owner: &Attachment<'_>, by_nft: bool) -> Result<(), CniError> {
    reference::delete(socket, owner.container_id)?;
    if by_nft { iptables::delete(socket, owner, false) } else { nft::delete(socket, owner, &[]).map(drop) }
}

/// Has the guard stand. The nf_tables backend made it with the entries; beside rules of iptables it is all that we have in
/// nf_tables, and a kernel without that goes without, as it does with the reference.
fn guard(socket: &mut Socket, backend: Backend) -> Result<(), CniError> {
    match backend {
        Backend::Nftables => Ok(()),
        Backend::Iptables if probe(socket, Family::Inet).is_err() => {
            eprintln!(
                "this kernel has no nf_tables: 127.0.0.0/8 is not guarded against what comes over a wire"
            );
            Ok(())
        }
        Backend::Iptables => nft::guard(socket),
    }
}

fn undo(socket: &mut Socket, owner: &Attachment<'_>) {
    let undone = [nft::delete(socket, owner, &[]).map(drop), iptables::delete(socket, owner, true)];
    for error in undone.into_iter().filter_map(Result::err) {
        eprintln!("undoing the ADD: {error}");
    }
}

/// CHECK: everything that ADD made is as it was made.
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
    let Wanted { addresses, plan, conditions } = Wanted::new(call, &conf, result)?;
    if plan.entries.is_empty() {
        return Ok(());
    }
    let owner = Attachment::from(call);
    let mut socket = netfilter()?;
    match whose(&mut socket, &conf, &owner)? {
        Whose::Ours => {
            let gate = services::check(&mut socket)?;
            nft::check(&mut socket, &owner, &plan, &conditions, gate)?;
        }
        Whose::References => reference::check(&mut socket, owner.container_id, &conf, &plan)?,
        Whose::Iptables => iptables::check(&conf, &owner, &addresses)?,
    }
    plan.from_loopback().map_or(Ok(()), |pod| localhost::check(result, pod))
}

/// Whose layout a container's host ports are in.
enum Whose {
    Ours,
    References,
    Iptables,
}

/// Tells it by what is there: a pod may be older than the plugin. Where nothing is, it should be the configured backend's.
fn whose(socket: &mut Socket, conf: &Conf, owner: &Attachment<'_>) -> Result<Whose, CniError> {
    if conf.backend == Backend::Iptables {
        return Ok(Whose::Iptables);
    }
    if nft::is_present(socket, owner)? {
        return Ok(Whose::Ours);
    }
    if reference::has(socket, owner.container_id)? {
        return Ok(Whose::References);
    }
    let is_iptables = iptables::has(socket, owner)?;
    Ok(if is_iptables { Whose::Iptables } else { Whose::Ours })
}

/// DEL: everything of the attachment, whatever the configuration says.
///
/// # Errors
/// What could not be removed, after all steps were taken.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let owner = Attachment::from(call);
    let mut failures = Failures::default();
    let mut socket = netfilter()?;
    let said = said(call);
    let mut removed = failures.keep(nft::delete(&mut socket, &owner, &said)).unwrap_or_default();
    removed.extend(failures.keep(reference::delete(&mut socket, owner.container_id)).unwrap_or_default());
    // Only a program can look into legacy tables. It is not started for a pod without host ports, nor for one whose host
    // ports have been found.
    let processes = removed.is_empty() && has_mappings(call.config);
    failures.keep(iptables::delete(&mut socket, &owner, processes));
    // What kube-proxy does never keeps a DEL from succeeding.
    if (!removed.is_empty() || services::are_local())
        && let Err(error) = services::adapt(&mut socket, None)
    {
        eprintln!("{error}");
    }
    removed.extend(said);
    flows::forget_after(&mut socket, &removed);
    failures.into_result()
}

/// The host ports that the configuration says the container has, if it can be read: iptables' rules are not taken apart.
fn said(call: &DelRequest<'_>) -> Vec<Entry> {
    let (Ok(conf), Some(result)) = (Conf::read(call.config), &call.prev_result) else { return Vec::new() };
    Plan::new(&conf, call.config.name(), &address::pick(result, call.ifname)).entries
}

/// GC: everything of the network's attachments that are not valid any more.
///
/// # Errors
/// What could not be removed, after all steps were taken.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let mut socket = netfilter()?;
    let network = call.config.name();
    let mut removed = failures.keep(nft::gc(&mut socket, network, call.valid)).unwrap_or_default();
    removed.extend(failures.keep(reference::gc(&mut socket, call.valid)).unwrap_or_default());
    failures.keep(iptables::gc(&mut socket, network, call.valid));
    failures.keep(services::collect(&mut socket));
    flows::forget_after(&mut socket, &removed);
    failures.into_result()
}

/// STATUS: whether an ADD could be served.
///
/// # Errors
/// Code 50 with the reason, or that of a configuration which cannot be used.
pub fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let unavailable = |why: String| CniError::new(Code::NotAvailable, why);
    if conf.backend == Backend::Iptables {
        return iptables::available(false).map_err(|error| unavailable(error.to_string()));
    }
    let mut socket = netfilter().map_err(|error| unavailable(error.msg))?;
    probe(&mut socket, Family::Inet)
        .map_err(|error| unavailable(format!("this kernel cannot forward host ports by nf_tables: {error}")))
}

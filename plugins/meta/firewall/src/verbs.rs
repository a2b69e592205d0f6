//! The steps of each verb.

use std::net::IpAddr;
use std::time::Instant;

use cni_common::plugin::{AddRequest, Attachment, DelRequest, GcRequest, StatusRequest};
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Code, Failures};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Family, probe};
use ferrule_kernel::sorted;
use ferrule_kit::check::ensure;
use ferrule_kit::owner;
use ferrule_kit::remedy;
use ferrule_kit::socket::netfilter;

use crate::choice::{Chosen, choose};
use crate::config::{Backend, Conf, Policy};
use crate::firewalld::Firewalld;
use crate::links::{self, Bridge};
use crate::nft::{self, By, Node, Owned};
use crate::plan::{self, Plan};
use crate::{forward_chain, iptables};

/// What a call requests: `prevResult`, and what its `addresses` need; `None` without any.
pub(crate) type Requested<'a> = (&'a AddResult, Option<(Plan, Option<Bridge>)>);

pub(crate) fn requested<'a>(
    call: &'a AddRequest<'_>,
    addresses: impl FnOnce(&AddResult) -> Vec<IpAddr>,
) -> Result<Requested<'a>, CniError> {
    let conf = Conf::read(call.config)?;
    let result = call.earlier_result()?;
    let addresses = addresses(result);
    if addresses.is_empty() {
        return Ok((result, None));
    }
    let bridge = match conf.policy {
        Policy::Open => None,
        policy => Some(links::bridge(result, call.ifname, policy)?),
    };
    let name = bridge.as_ref().map(|bridge| bridge.name.clone());
    let plan = Plan::new(conf, &Attachment::from(call), result, addresses, name);
    Ok((result, Some((plan, bridge))))
}

/// ADD: opens the firewall for the container, and applies the policy of its bridge. Returns `prevResult`.
///
/// # Errors
/// The first step that failed. The container then has no rules.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let (result, requested) = requested(call, plan::addresses)?;
    let Some((plan, bridge)) = requested else { return Ok(result.clone()) };
    let mut socket = netfilter()?;
    let node = nft::node(&mut socket, plan.conf.mark_bit)?;
    let mut chosen = choose(&node, &plan)?;
    let added = open(&mut socket, &node, &plan, &mut chosen, nft::add).and_then(|()| match bridge {
        Some(bridge) if plan.conf.policy == Policy::Isolated => bridge.isolate_port(),
        _ => Ok(()),
    });
    added.inspect_err(|_| undo(&mut socket, &plan))?;
    Ok(result.clone())
}

/// Adds the container to our table: [`nft::add`] or [`nft::repair`].
type Record = fn(&mut Socket, &Node, &Plan, &By) -> Result<(), CniError>;

/// Records the owner first: a call that is killed after that leaves nothing that DEL or GC does not find.
pub(crate) fn open(
    socket: &mut Socket,
    node: &Node,
    plan: &Plan,
    chosen: &mut Chosen,
    record: Record,
) -> Result<(), CniError> {
    match chosen {
        Chosen::Nftables => {
            record(socket, node, plan, &By::Nftables)?;
            plan.families().try_for_each(|family| open_forward(socket, node, family, plan.conf.mark_bit))
        }
        Chosen::Iptables => {
            // The policy is iptables' business.
            let recorded = record(socket, node, &plan.without_policy(), &By::Iptables);
            if probe(socket, Family::Inet).is_ok() {
                recorded?;
            } else {
                remark!(
                    "this kernel has no nf_tables: the owner of the rules is not recorded, and host ports stay closed"
                );
            }
            iptables::add(plan)
        }
        Chosen::Firewalld(firewalld) => {
            let zone = &plan.conf.zone;
            record(socket, node, plan, &By::Firewalld(zone.clone()))?;
            plan.addresses.iter().try_for_each(|address| firewalld.add(zone, *address))
        }
    }
}

/// Opens the chains `FORWARD` of both variants of iptables, if they exist and are not open yet.
pub(crate) fn open_forward(
    socket: &mut Socket,
    node: &Node,
    family: IpFamily,
    bit: u8,
) -> Result<(), CniError> {
    let present = node.iptables(family);
    if present.has_forward && !(present.is_open && node.is_complete) {
        forward_chain::add(socket, family, bit)?;
    }
    if let Some(programs) = forward_chain::legacy(family)
        && !(node.is_complete && nft::is_legacy_open(socket, family)?)
    {
        forward_chain::add_legacy(&programs, bit)?;
        nft::note_legacy(socket, family)?;
    }
    Ok(())
}

fn undo(socket: &mut Socket, plan: &Plan) {
    let undone = nft::owned(socket, &plan.addresses);
    let undone = undone.and_then(|owned| close(socket, &plan.conf, owned, Some(&plan.label)));
    if let Err(error) = undone {
        remark!("failed to undo the ADD: {error}");
    }
}

/// CHECK: compares all objects of ADD with the plan.
///
/// # Errors
/// The first object that is missing or altered.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let own = |result: &AddResult| plan::own_addresses(result, call.ifname);
    let (_, Some((plan, bridge))) = requested(call, own)? else { return Ok(()) };
    let mut socket = netfilter()?;
    let node = nft::node(&mut socket, plan.conf.mark_bit)?;
    let owned = nft::owned(&mut socket, &plan.addresses)?;
    let by = opened_by(&mut socket, &node, &plan, &owned)?;
    // The reference's containers have rules, but neither an owner nor an isolated port.
    let is_ours = owned.iter().any(|owned| owned.labels().next().is_some());
    // The policy of a bridge is iptables' business if that opens the addresses.
    let in_table = if by == By::Iptables { plan.without_policy() } else { plan.clone() };
    match &by {
        By::Nftables => {}
        By::Iptables => iptables::check(&plan, is_ours)?,
        By::Firewalld(zone) => {
            let mut firewalld = Firewalld::connect()?;
            plan.addresses.iter().try_for_each(|address| firewalld.check(zone, *address))?;
        }
    }
    if is_ours || by == By::Nftables {
        nft::check(&mut socket, &in_table, &owned, &by)?;
    }
    if by == By::Nftables {
        plan.families()
            .try_for_each(|family| check_forward(&mut socket, &node, family, plan.conf.mark_bit))?;
    }
    let shared = bridge
        .as_ref()
        .filter(|_| is_ours && plan.conf.policy == Policy::Isolated)
        .and_then(Bridge::shared_port);
    ensure(shared.is_none(), || {
        format!("port {:?} of the bridge is not isolated", shared.unwrap_or_default())
    })
}

/// Checks the chains `FORWARD` that [`open_forward`] opens.
pub(crate) fn check_forward(
    socket: &mut Socket,
    node: &Node,
    family: IpFamily,
    bit: u8,
) -> Result<(), CniError> {
    if node.iptables(family).has_forward {
        forward_chain::check(socket, family, bit)?;
    }
    match forward_chain::legacy(family) {
        Some(programs) => forward_chain::check_legacy(&programs, family, bit),
        None => Ok(()),
    }
}

/// What has opened the addresses: what the table says, else what the reference has left, else the configured backend.
pub(crate) fn opened_by(
    socket: &mut Socket,
    node: &Node,
    plan: &Plan,
    owned: &[Owned],
) -> Result<By, CniError> {
    let conf = &plan.conf;
    let is_iptables = owned.iter().any(Owned::is_by_iptables);
    let zone = owned.iter().find_map(Owned::zone);
    let by = match (zone, conf.backend) {
        (Some(zone), backend) if backend.may_be_firewalld() || !is_iptables => By::Firewalld(zone),
        _ if is_iptables => By::Iptables,
        _ if owned.iter().any(|owned| owned.is_pod_of(&plan.label)) => By::Nftables,
        _ if iptables::has(socket, node, &plan.addresses)? => By::Iptables,
        (_, Backend::Firewalld) => By::Firewalld(conf.zone.clone()),
        (_, backend) if backend.may_be_firewalld() && Firewalld::find().is_some() => {
            By::Firewalld(conf.zone.clone())
        }
        (_, Backend::Iptables | Backend::Reference) => By::Iptables,
        _ => By::Nftables,
    };
    Ok(by)
}

/// DEL: removes everything of the attachment, and what the reference has for its addresses.
///
/// # Errors
/// All steps that failed; every step is tried.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::of_removal(call.config);
    let label = owner::label(&Attachment::from(call));
    let mut socket = netfilter()?;
    let result = call.prev_result.as_ref();
    let addresses = result.map(plan::addresses).unwrap_or_default();
    let mut owned = nft::owned(&mut socket, &addresses)?;
    if owned.is_empty() || !owned.iter().all(|owned| owned.labels().any(|other| other == label)) {
        let listed = nft::list(&mut socket, |other| other == label)?;
        let more = sorted(listed.iter().map(|owned| owned.address));
        let more: Vec<_> = more.into_iter().filter(|address| !addresses.contains(address)).collect();
        owned.extend(nft::owned(&mut socket, &more)?);
    }
    // A late DEL must not close the firewall for the container that has got the address since.
    owned.retain(|owned| !owned.is_foreign(&label));
    let began = Instant::now();
    let closed = close(&mut socket, &conf, owned, Some(&label));
    socket.close_after_deletion(began.elapsed());
    closed
}

/// Removes addresses from all backends. `label` is the owner; `None` for GC, where each address has its own.
fn close(socket: &mut Socket, conf: &Conf, owned: Vec<Owned>, label: Option<&str>) -> Result<(), CniError> {
    if owned.is_empty() {
        return Ok(());
    }
    let mut failures = Failures::default();
    let node = failures.keep(nft::node(socket, conf.mark_bit)).unwrap_or_default();
    let addresses: Vec<_> = owned.iter().map(|owned| owned.address).collect();
    // Only processes can read legacy tables, and only the reference has rules there for an address of our table.
    let is_pod = |owned: &Owned| label.is_some_and(|label| owned.is_pod_of(label));
    let processes = !owned.iter().all(is_pod);
    failures.keep(iptables::delete(socket, &node, &addresses, processes));
    remove_sources(conf, &owned);
    failures.keep(nft::delete(socket, &owned, label));
    failures.into_result()
}

/// Removes the sources of firewalld: those that the table names, and those of addresses whose backend is unknown. Without a bus it
/// succeeds.
pub(crate) fn remove_sources(conf: &Conf, owned: &[Owned]) {
    let default = conf.backend.may_be_firewalld().then(|| conf.zone.clone());
    let is_unknown = |owned: &Owned| owned.labels().next().is_none() || owned.is_restored();
    let zone_of = |owned: &Owned| owned.zone().or_else(|| default.clone().filter(|_| is_unknown(owned)));
    let sources: Vec<_> = owned.iter().filter_map(|owned| Some((zone_of(owned)?, owned.address))).collect();
    if sources.is_empty() {
        return;
    }
    if let Some(mut firewalld) = Firewalld::find() {
        for (zone, address) in sources {
            firewalld.remove(&zone, address);
        }
    }
}

/// GC: removes everything of the network's attachments that are not valid, and the policies of bridges that are gone.
///
/// # Errors
/// All steps that failed; every step is tried.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::of_removal(call.config);
    let network = call.config.name();
    let valid = Attachment::keys(network, call.valid, owner::label);
    let mut socket = netfilter()?;
    let mut failures = Failures::default();
    let is_dead = |label: &str| owner::is_on(label, network) && !valid.contains(label);
    let dead = failures.keep(nft::list(&mut socket, is_dead)).unwrap_or_default();
    let (pods, others): (Vec<Owned>, Vec<Owned>) = dead.into_iter().partition(Owned::is_pod);
    failures.keep(nft::delete(&mut socket, &pods, None));
    failures.keep(close(&mut socket, &conf, others, None));
    failures.keep(nft::delete_unused_bridges(&mut socket));
    failures.into_result()
}

/// STATUS: checks that the backend is available.
///
/// # Errors
/// Code 50 if it is not, or the error of an invalid configuration.
pub fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let unavailable = |why: String| CniError::new(Code::NotAvailable, why);
    match conf.backend {
        Backend::Reference if Firewalld::find().is_some() => Ok(()),
        Backend::Iptables | Backend::Reference => {
            let available = iptables::available(IpFamily::V4);
            available.map_err(|error| unavailable(error.to_string()).with_remedy(remedy::IPTABLES))
        }
        Backend::Firewalld => {
            let stopped = |why| unavailable(why).with_remedy("systemctl enable --now firewalld");
            let is_running = Firewalld::connect().map_err(|error| stopped(error.msg))?.is_running();
            if is_running { Ok(()) } else { Err(stopped("firewalld does not run".to_owned())) }
        }
        Backend::Nftables | Backend::Automatic => {
            let mut socket = netfilter().map_err(|error| unavailable(error.msg))?;
            let error = match probe(&mut socket, Family::Inet) {
                Ok(()) => return Ok(()),
                // The automatic choice needs one of them.
                Err(_) if conf.backend == Backend::Automatic && iptables::available(IpFamily::V4).is_ok() => {
                    return Ok(());
                }
                Err(error) => error,
            };
            Err(remedy::no_nf_tables(&error, "nf_tables"))
        }
    }
}

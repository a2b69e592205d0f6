//! ADD: address, forwarding, pair, container, host's end, neighbours, masquerading.
//!
//! A failed ADD undoes its steps in reverse order. Forwarding stays: another ADD may already rely on it.

use cni_common::plugin::{AddRequest, Attachment, Delegate};
use cni_common::spec::{AddResult, CniError};
use ferrule_kernel::netlink::{Link, LinkId, Socket, addr, link, route};
use ferrule_kit::address_wait::wait_for_groups;
use ferrule_kit::container::Container;
use ferrule_kit::plan::Plan;
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::{ipam, socket, sysctl, veth};
use ferrule_masquerade as masquerade;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::config::Conf;
use crate::neighbours::{self, End};
use crate::plan;

/// Connects the container to the node.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let ipam = Delegate::ipam(call.env, call.config)?;
    let mut container = Container::open(call.sandbox.netns()?, call.ifname)?;
    veth::check_name(&mut container, &Attachment::from(call))?;
    ipam::add(ipam.as_ref(), call, |assigned| {
        attach(call, &conf, &mut container, plan::new(&conf.link, assigned)?)
    })
}

fn attach(
    call: &AddRequest<'_>,
    conf: &Conf,
    container: &mut Container<'_>,
    plan: Plan,
) -> Result<AddResult, CniError> {
    let mut host = socket::route()?;
    sysctl::ensure_forwarding(&mut host, &plan.addresses())?;
    let (netns, attachment) = (call.sandbox.netns()?, Attachment::from(call));
    let end = veth::create(&mut host, conf.kind, netns, &attachment, &conf.link, None)?;
    let mut undo = UndoStack::default();
    undo.push(format!("make {:?}", end.name), link::delete(LinkId::Index(end.index)));
    let connected = connect(call, conf, container, plan, &mut host, &end);
    connected.inspect_err(|_| undo.undo(&mut host))
}

fn connect(
    call: &AddRequest<'_>,
    conf: &Conf,
    container: &mut Container<'_>,
    mut plan: Plan,
    host: &mut Socket,
    end: &Link,
) -> Result<AddResult, CniError> {
    let index = end.peer.ok_or_else(|| CniError::internal(format!("{:?} has no peer", end.name)))?;
    let inside = container.configure(index, &plan)?;
    set_up_host(host, end, &plan)?;
    let inside = container.wait_for_carrier(inside)?;
    // A /proc/sys that cannot be read is no reason to fail: few nodes need these entries.
    if neighbours::reason(end, &plan.ips).is_ok_and(|reason| reason.is_some()) {
        let (host, container) =
            (End { socket: host, link: end }, End { socket: &mut container.socket, link: &inside });
        neighbours::set(host, container, &plan.ips)?;
    }
    let addresses = plan.addresses();
    container.wait(&inside, &addresses)?;
    container.wait_for_router(&inside, &mut plan)?;
    if let Some(wanted) = &conf.masquerade {
        masquerade::add(&mut socket::netfilter()?, wanted, &Attachment::from(call), &addresses)?;
    }
    Ok(plan.result(call, &[end], &inside))
}

/// Sets the new host's end up, with the gateways' addresses and the routes to the container.
fn set_up_host(host: &mut Socket, end: &Link, plan: &Plan) -> Result<(), CniError> {
    let mut addresses = plan::gateways(&plan.ips);
    let [none, up] = veth::set_up(end);
    let mut steps = Vec::new();
    // A router on the node advertises itself by the kernel's link-local address and its subnet.
    if plan.wait_for_ra.is_none() {
        steps.push(none);
        addresses.extend(plan::needs_link_local(&plan.ips).then(|| plan::link_local(end.mac)));
    }
    steps.extend(add_addresses(end, &addresses));
    steps.push(up);
    steps.extend(add_routes(end, plan));
    // Removing the link undoes all of these.
    UndoStack::default().run(host, steps)?;
    wait_for_groups(host, end.index, &addresses);
    Ok(())
}

/// The requests that give the host's end addresses, which may be there already.
pub(crate) fn add_addresses(end: &Link, addresses: &[IpNetwork]) -> impl Iterator<Item = Step> {
    addresses.iter().map(|address| {
        let add = addr::add(end.index, *address, addr::NODAD);
        let what = format!("failed to add IP addr {address} to {:?}", end.name);
        Step::new(what, add).unless(&[Errno::EEXIST])
    })
}

/// The requests for the routes to the container, which may be there already.
pub(crate) fn add_routes(end: &Link, plan: &Plan) -> impl Iterator<Item = Step> {
    plan::host_routes(&plan.ips).map(|route| {
        let what = format!("failed to add route on host: {} dev {}", route.dst, end.name);
        Step::new(what, route::add(end.index, &route)).unless(&[Errno::EEXIST])
    })
}

//! ADD: address, forwarding, pair, container, host's end, masquerading.
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
use nix::errno::Errno;

use crate::config::Conf;
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
    sysctl::skip_duplicate_address_detection(&end.name);
    let inside = container.configure(index, &plan)?;
    connect_host(host, end, &plan)?;
    let addresses = plan.addresses();
    container.wait(&inside, &addresses)?;
    container.wait_for_router(&inside, &mut plan)?;
    if let Some(wanted) = &conf.masquerade {
        masquerade::add(&mut socket::netfilter()?, wanted, &Attachment::from(call), &addresses)?;
    }
    Ok(plan.result(call, &[end], &inside))
}

/// Gives the host's end the gateways' addresses and the routes to the container, which may be there already.
pub(crate) fn connect_host(host: &mut Socket, end: &Link, plan: &Plan) -> Result<(), CniError> {
    let gateways = plan::gateways(&plan.ips);
    let mut steps = Vec::new();
    for gateway in &gateways {
        let add = addr::add(end.index, *gateway, addr::NODAD);
        let what = format!("failed to add IP addr {gateway} to {:?}", end.name);
        steps.push(Step::new(what, add).unless(&[Errno::EEXIST]));
    }
    for route in plan::host_routes(&plan.ips) {
        let what = format!("failed to add route on host: {} dev {}", route.dst, end.name);
        steps.push(Step::new(what, route::add(end.index, &route)).unless(&[Errno::EEXIST]));
    }
    // Removing the link undoes all of these.
    UndoStack::default().run(host, steps)?;
    wait_for_groups(host, end.index, &gateways);
    Ok(())
}

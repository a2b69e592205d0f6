//! ADD: address, bridge, veth pair, container, gateway, masquerading.
//!
//! A failed ADD undoes its steps in reverse order. The bridge, its addresses and forwarding stay: another ADD
//! may already rely on them.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{AddResult, CniError};
use ferrule_kernel::netlink::{Link, LinkId, Socket, link};
use ferrule_kit::container::Container;
use ferrule_kit::plan::Plan;
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::{address_wait, ipam, masquerade, socket, sysctl, veth};

use crate::config::Conf;
use crate::{device, plan};

/// Attaches the container to the bridge.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let ipam = ipam::of_add(call)?;
    let mut container = Container::open(call.sandbox.netns()?, call.ifname)?;
    veth::check_name(&mut container, &Attachment::from(call))?;
    ipam::add(ipam.as_ref(), call, |assigned| {
        attach(call, &conf, &mut container, plan::new(&conf, assigned)?)
    })
}

fn attach(
    call: &AddRequest<'_>,
    conf: &Conf,
    container: &mut Container<'_>,
    plan: Plan,
) -> Result<AddResult, CniError> {
    let mut host = socket::route()?;
    let bridge = device::ensure(&mut host, conf)?;
    let (netns, attachment) = (call.sandbox.netns()?, Attachment::from(call));
    let port = veth::create(&mut host, netns, &attachment, &conf.link, Some(bridge.index))?;
    let mut undo = UndoStack::default();
    undo.push(format!("make {:?}", port.name), link::delete(LinkId::Index(port.index)));
    if conf.hairpin {
        let hairpin = link::set_hairpin(port.index, true);
        undo.run(&mut host, vec![Step::new(format!("set hairpin mode of {:?}", port.name), hairpin)])?;
    }
    let connected = connect(call, conf, container, plan, &mut host, &bridge, &port);
    connected.inspect_err(|_| undo.undo(&mut host))
}

fn connect(
    call: &AddRequest<'_>,
    conf: &Conf,
    container: &mut Container<'_>,
    plan: Plan,
    host: &mut Socket,
    bridge: &Link,
    port: &Link,
) -> Result<AddResult, CniError> {
    let index = port.peer.ok_or_else(|| CniError::internal(format!("{:?} has no peer", port.name)))?;
    let end = container.configure(index, &plan)?;
    let addresses = plan.addresses();
    let (port, bridge, present) = device::settle(host, port, bridge)?;
    if conf.is_gateway && !addresses.is_empty() {
        let gateways = plan::gateways(&plan.ips);
        device::ensure_gateways(host, &bridge, &present, &gateways, conf.force_address)?;
        sysctl::ensure_forwarding(&addresses)?;
        address_wait::wait(host, bridge.index, &gateways);
    }
    address_wait::wait(&mut container.socket, end.index, &addresses);
    if conf.ip_masq {
        masquerade::add(&mut socket::netfilter()?, &Attachment::from(call), &addresses)?;
    }
    Ok(plan.result(call, &[&bridge, &port], &end))
}

//! ADD: address, bridge, veth pair, container, gateway, masquerading.
//!
//! A failed ADD undoes its steps in reverse order. The bridge, its addresses and forwarding stay: another ADD
//! may already rely on them.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{AddResult, CniError};
use ferrule_kernel::netlink::addr::Address;
use ferrule_kernel::netlink::{Link, LinkId, Mac, Socket, link};
use ferrule_kit::address_wait::{Dad, wait_for_groups};
use ferrule_kit::container::Container;
use ferrule_kit::plan::{Plan, interface};
use ferrule_kit::steps::{UndoStack, report_undo};
use ferrule_kit::{ipam, socket, sysctl, veth};
use ferrule_masquerade as masquerade;
use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::gateways::{self, Place};
use crate::{device, mac_spoof, plan, port, vlan_gateway};

/// Attaches the container to the bridge.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let ipam = ipam::of_add(call)?;
    let mut container = Container::open(call.sandbox.netns()?, call.ifname)?;
    container.dad = if conf.dad { Dad::Wait } else { Dad::Off };
    container.keep_down = conf.disable_container_interface;
    veth::check_name(&mut container, &Attachment::from(call))?;
    if ipam::needs_link(call.config) {
        return attach(call, &conf, &mut container, |connect| {
            ipam::add(ipam.as_ref(), call, |assigned| connect(plan::new(&conf, assigned)?))
        });
    }
    ipam::add(ipam.as_ref(), call, |assigned| {
        let plan = plan::new(&conf, assigned)?;
        attach(call, &conf, &mut container, |connect| connect(plan))
    })
}

/// Gives a container with a link its addresses, or fails.
type Connect<'a> = &'a mut dyn FnMut(Plan) -> Result<AddResult, CniError>;

/// Makes the link, and then connects the container. `with_plan` has the plan, or gets it from an IPAM plugin that needs the
/// link.
fn attach(
    call: &AddRequest<'_>,
    conf: &Conf,
    container: &mut Container<'_>,
    with_plan: impl FnOnce(Connect<'_>) -> Result<AddResult, CniError>,
) -> Result<AddResult, CniError> {
    let mut host = socket::route()?;
    let bridge = device::ensure(&mut host, conf, None)?;
    let (netns, attachment) = (call.sandbox.netns()?, Attachment::from(call));
    let port = veth::create(&mut host, veth::KIND, netns, &attachment, &conf.link, Some(bridge.index))?;
    let mut undo = UndoStack::default();
    undo.push(format!("make {:?}", port.name), link::delete(LinkId::Index(port.index)));
    // The new port may have changed it, and so may its removal.
    undo.push(format!("keep the MAC address of {:?}", bridge.name), link::set_mac(bridge.index, bridge.mac));
    let mut steps = port::setup(conf, &bridge, &port);
    if ipam::needs_link(call.config) {
        steps.extend(veth::set_up(&port));
    }
    undo.run(&mut host, steps)?;
    let connected = with_plan(&mut |plan| connect(call, conf, container, plan, &mut host, &bridge, &port));
    connected.inspect_err(|_| undo.undo(&mut host))
}

fn connect(
    call: &AddRequest<'_>,
    conf: &Conf,
    container: &mut Container<'_>,
    mut plan: Plan,
    host: &mut Socket,
    bridge: &Link,
    port: &Link,
) -> Result<AddResult, CniError> {
    let index = port.peer.ok_or_else(|| CniError::internal(format!("{:?} has no peer", port.name)))?;
    let end = container.configure(index, &plan)?;
    let addresses = plan.addresses();
    let must_operate = !conf.disable_container_interface;
    if !ipam::needs_link(call.config) {
        UndoStack::default().run(host, veth::set_up(port).into())?;
    }
    let (port, bridge, present) = device::settle(host, port, bridge, must_operate, &mut || false)?;
    let end = container.wait_for_carrier(end)?;
    port::check_isolation(&port, conf)?;
    let vlan_gateway = ensure_gateways(host, conf, (&bridge, &port), &present, &plan, None)?;
    container.wait(&end, &addresses)?;
    container.wait_for_router(&end, &mut plan)?;
    add_rules(conf, &Attachment::from(call), &addresses, &port, &end)?;
    let mut result = plan.result(call, &[&bridge, &port], &end);
    result.interfaces.extend(vlan_gateway.map(|link| interface(&link, "")));
    Ok(result)
}

/// Gives the bridge, or the gateway of the VLAN, the gateways' addresses, if the node is a gateway. `present` are the bridge's
/// addresses, `mac` the MAC address of a new gateway of the VLAN. Returns that gateway, if there is one.
pub(crate) fn ensure_gateways(
    host: &mut Socket,
    conf: &Conf,
    (bridge, port): (&Link, &Link),
    present: &[Address],
    plan: &Plan,
    mac: Option<Mac>,
) -> Result<Option<Link>, CniError> {
    if !conf.is_gateway || plan.ips.is_empty() {
        return Ok(None);
    }
    let gateways = plan::gateways(&plan.ips);
    let mut vlan_gateway = None;
    if conf.vlan.vlan == 0 {
        let place = Place { link: bridge, present, bridge, port, force: conf.force_address };
        gateways::ensure(host, &place, &gateways)?;
    } else {
        vlan_gateway = Some(vlan_gateway::ensure(host, bridge, port, conf, &gateways, mac)?);
    }
    sysctl::ensure_forwarding(host, &plan.addresses())?;
    wait_for_groups(host, vlan_gateway.as_ref().unwrap_or(bridge).index, &gateways);
    Ok(vlan_gateway)
}

/// Adds the firewall rules of the attachment: all of them or none.
fn add_rules(
    conf: &Conf,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
    port: &Link,
    container: &Link,
) -> Result<(), CniError> {
    if conf.ip_masq.is_none() && !conf.mac_spoof_check {
        return Ok(());
    }
    let mut socket = socket::netfilter()?;
    let mut add = || {
        if conf.mac_spoof_check {
            mac_spoof::add(&mut socket, attachment, &port.name, container.mac)?;
        }
        let masquerade = |wanted| masquerade::add(&mut socket, wanted, attachment, addresses);
        conf.ip_masq.as_ref().map_or(Ok(()), masquerade)
    };
    add().inspect_err(|_| {
        if conf.mac_spoof_check {
            report_undo(mac_spoof::delete(&mut socket, attachment));
        }
    })
}

//! Repair: bridge, port, container, gateway, masquerading and `macspoofchk`, in the order of ADD.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::{Link, Mac, Socket, link};
use ferrule_kit::address_wait::Dad;
use ferrule_kit::check::{Inside, prev_result};
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::{repair, socket, veth};
use ferrule_masquerade as masquerade;

use crate::add::ensure_gateways;
use crate::config::Conf;
use crate::{device, mac_spoof, port};

/// Makes again what CHECK refuses.
///
/// # Errors
/// The pair is gone, or as ADD.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let mut inside = repair::find(call, Some(veth::KIND), &conf.link)?;
    inside.container.dad = if conf.dad { Dad::Wait } else { Dad::Off };
    inside.container.keep_down = conf.disable_container_interface;
    let mut host = socket::route()?;
    let (end, mut steps) = repair::host_end(&mut host, call, &inside.link)?;
    let bridge = bridge(&mut host, call, &conf, &end)?;
    let is_port = end.master == Some(bridge.index);
    // The kernel gives a port the default settings when it joins the bridge.
    let current = if is_port { end.port } else { Default::default() };
    if !is_port {
        let what = format!("make {:?} a port of bridge {:?}", end.name, bridge.name);
        steps.push(Step::new(what, link::set_master(end.index, bridge.index)));
    }
    steps.extend(port::restore(&conf, &Link { port: current, ..end.clone() }));
    UndoStack::default().run(&mut host, steps)?;
    port::restore_vlans(&mut host, &bridge, &end, &conf)?;
    inside.repair()?;
    let must_operate = !conf.disable_container_interface;
    // A container may set its interface down again at once.
    let mut is_held_down = || !matches!(inside.container.interface(), Ok(Some(link)) if link.is_up());
    let (port, bridge, present) = device::settle(&mut host, &end, &bridge, must_operate, &mut is_held_down)?;
    let mac = reported_mac(call, &conf.vlan_gateway(&bridge.name))?;
    ensure_gateways(&mut host, &conf, (&bridge, &port), &present, &inside.plan, mac)?;
    restore_rules(&conf, &Attachment::from(call), &inside, &port)
}

/// The bridge, up, made again if it does not exist. It gets the MAC address of `prevResult` if no other port would notice.
fn bridge(host: &mut Socket, call: &AddRequest<'_>, conf: &Conf, end: &Link) -> Result<Link, CniError> {
    let found = device::find(host, &conf.bridge)?;
    let name = found.as_ref().map_or(&conf.bridge, |bridge| &bridge.name);
    let mac = reported_mac(call, name)?;
    let bridge = device::ensure(host, conf, mac)?;
    let Some(mac) = mac.filter(|mac| *mac != bridge.mac) else { return Ok(bridge) };
    let ports = host.ports(bridge.index).context(|| format!("list the ports of {name:?}"))?;
    if ports.iter().any(|port| port.index != end.index) {
        return Ok(bridge);
    }
    host.request(link::set_mac(bridge.index, mac)).context(|| format!("set the MAC address of {name:?}"))?;
    Ok(Link { mac, ..bridge })
}

/// The MAC address of a link of the host in `prevResult`.
fn reported_mac(call: &AddRequest<'_>, name: &str) -> Result<Option<Mac>, CniError> {
    let mut on_host = prev_result(call)?.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    let reported = on_host.find(|interface| interface.name == name);
    Ok(reported.and_then(|interface| interface.mac.parse().ok()))
}

/// Makes again those firewall rules of the attachment that CHECK misses.
fn restore_rules(
    conf: &Conf,
    attachment: &Attachment<'_>,
    inside: &Inside<'_>,
    port: &Link,
) -> Result<(), CniError> {
    if conf.ip_masq.is_none() && !conf.mac_spoof_check {
        return Ok(());
    }
    let (mut socket, mac) = (socket::netfilter()?, inside.link.mac);
    if conf.mac_spoof_check && mac_spoof::check(&mut socket, attachment, &port.name, mac).is_err() {
        mac_spoof::add(&mut socket, attachment, &port.name, mac)?;
    }
    let addresses = inside.plan.addresses();
    let masquerade = |wanted| masquerade::repair(&mut socket, wanted, attachment, &addresses);
    conf.ip_masq.as_ref().map_or(Ok(()), masquerade)
}

//! CHECK: compares the attachment in the kernel with `prevResult` and the configuration.
//!
//! CHECK looks only at what this plugin made. Other plugins of the chain check their own objects.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{CniError, Context, Interface};
use ferrule_kernel::netlink::{Link, LinkId, link};
use ferrule_kit::{check, socket, sysctl, veth};
use ferrule_masquerade as masquerade;

use crate::config::Conf;
use crate::{device, mac_spoof, plan, port, vlan_gateway};

/// Compares the attachment with `prevResult` and the configuration.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let (container, plan) =
        check::container(call, Some(veth::KIND), &conf.link, !conf.disable_container_interface)?;
    let result = check::prev_result(call)?;
    let addresses = plan.addresses();

    let mut host = socket::route()?;
    let on_host = || result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    let requests = on_host().map(|interface| link::get(LinkId::Name(&interface.name))).collect();
    let (mut found, mut bridge_name) = (Vec::new(), None);
    for (interface, answer) in on_host().zip(host.requests(requests)) {
        let link = match link::read(answer) {
            Err(error) if interface.name == conf.bridge => {
                return Err(error).context(|| format!("look up bridge {:?}", conf.bridge));
            }
            // Another plugin of the chain may report a name that no link can have.
            found => found.unwrap_or_default(),
        };
        found.push((interface, link));
    }
    if !found.iter().any(|(interface, _)| interface.name == conf.bridge) {
        // It may be an alternative name.
        bridge_name = device::find(&mut host, &conf.bridge)?.map(|bridge| bridge.name);
    }
    let name = bridge_name.as_deref().unwrap_or(&conf.bridge);
    let bridge = check_bridge(&conf, name, &found)?;
    let port = check_port(&conf, &found, bridge, &container)?;
    port::check_vlans(&mut host, bridge, port, &conf)?;
    if conf.is_gateway {
        let gateways = plan::gateways(&plan.ips);
        if conf.vlan.vlan != 0 && !gateways.is_empty() {
            let link = vlan_gateway::check(&mut host, bridge, &conf)?;
            check::addresses(&mut host, "gateway", &link, &gateways)?;
        } else {
            check::addresses(&mut host, "bridge", bridge, &gateways)?;
        }
        sysctl::check_forwarding(&mut host, &addresses)?;
    }
    let attachment = Attachment::from(call);
    if conf.mac_spoof_check {
        mac_spoof::check(&mut socket::netfilter()?, &attachment, &port.name, container.mac)?;
    }
    if let Some(wanted) = &conf.ip_masq {
        masquerade::ensure(&mut socket::netfilter()?, wanted, &attachment, &addresses)?;
    }
    Ok(())
}

/// Checks the bridge with this name among the host's interfaces of the result and their links.
fn check_bridge<'l>(
    conf: &Conf,
    name: &str,
    found: &'l [(&Interface, Option<Link>)],
) -> Result<&'l Link, CniError> {
    let (reported, bridge) = found
        .iter()
        .find(|(reported, _)| reported.name == name)
        .ok_or_else(|| CniError::internal(format!("prevResult has no bridge {name:?}")))?;
    let bridge = bridge.as_ref().ok_or_else(|| CniError::internal(format!("bridge {name:?} not found")))?;
    check::ensure(bridge.kind == device::KIND, || format!("{name:?} is not a bridge"))?;
    check::mac("interface", bridge, reported)?;
    check::ensure(bridge.is_up(), || format!("bridge {name:?} is down"))?;
    check::ensure(!conf.promisc_mode || bridge.is_promiscuous(), || {
        format!("Bridge interface {name} configured Promisc Mode true, but it is off")
    })?;
    conf.vlan.check_bridge(bridge)?;
    Ok(bridge)
}

/// Checks that one host interface of the result is the container's veth peer, a port of the bridge, and up. Returns
/// it.
fn check_port<'l>(
    conf: &Conf,
    found: &'l [(&Interface, Option<Link>)],
    bridge: &Link,
    container: &Link,
) -> Result<&'l Link, CniError> {
    for (reported, link) in found {
        let is_peer = |link: &&Link| link.kind == veth::KIND && link.peer == Some(container.index);
        let Some(port) = link.as_ref().filter(is_peer) else { continue };
        if container.peer != Some(port.index) {
            continue;
        }
        let name = &port.name;
        check::ensure(port.master == Some(bridge.index), || {
            format!("{name:?} is not a port of bridge {:?}", bridge.name)
        })?;
        check::ensure(port.is_up(), || format!("bridge port {name:?} is down"))?;
        port::check(port, conf)?;
        check::mac("interface", port, reported)?;
        return Ok(port);
    }
    Err(CniError::internal(format!("CNI veth created for bridge {} was not found", bridge.name)))
}

//! CHECK: compares the attachment in the kernel with `prevResult` and the configuration.
//!
//! CHECK looks only at what this plugin made. Other plugins of the chain check their own objects.

use cni_common::plugin::{AddRequest, Attachment, Verb};
use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::netlink::{Link, LinkId, Socket};
use ferrule_kit::container::Container;
use ferrule_kit::{check, ipam, masquerade, socket, sysctl, veth};
use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::{device, plan};

/// Compares the attachment with `prevResult` and the configuration.
///
/// # Errors
/// The first object that is missing or altered; the IPAM plugin's error if its CHECK fails.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let netns = call.sandbox.netns()?;
    ipam::call(call.env, call.config, Verb::Check)?;
    let result = check::prev_result(call)?;
    let reported = check::reported(call, result)?;
    let ips = check::own_ips(result, call.ifname);
    let addresses: Vec<IpNetwork> = ips.iter().map(|ip| ip.address).collect();

    let mut inside = Container::open(netns, call.ifname)?;
    let container = check::link(&mut inside, veth::KIND, reported)?;
    check::addresses(&mut inside.socket, "interface", &container, &addresses)?;
    check::routes(&mut inside.socket, result, &conf.link.ipam_routes)?;

    let mut host = socket::route()?;
    let bridge = check_bridge(&mut host, &conf, result)?;
    check_port(&mut host, &conf, result, &bridge, &container)?;
    if conf.is_gateway {
        check::addresses(&mut host, "bridge", &bridge, &plan::gateways(&ips))?;
        sysctl::check_forwarding(&addresses)?;
    }
    if conf.ip_masq {
        check_masquerading(&Attachment::from(call), &addresses)?;
    }
    Ok(())
}

fn check_bridge(socket: &mut Socket, conf: &Conf, result: &AddResult) -> Result<Link, CniError> {
    let name = conf.bridge.as_str();
    let reported =
        result.interfaces.iter().find(|interface| interface.name == name && interface.sandbox.is_empty());
    let reported =
        reported.ok_or_else(|| CniError::internal(format!("prevResult has no bridge {name:?}")))?;
    let bridge = socket.link(LinkId::Name(name)).context(|| format!("look up bridge {name:?}"))?;
    let bridge = bridge.ok_or_else(|| CniError::internal(format!("bridge {name:?} not found")))?;
    if bridge.kind != device::KIND {
        return Err(CniError::internal(format!("{name:?} is not a bridge")));
    }
    check::mac("interface", &bridge, reported)?;
    if !bridge.is_up() {
        return Err(CniError::internal(format!("bridge {name:?} is down")));
    }
    if conf.promiscuous && !bridge.is_promiscuous() {
        return Err(CniError::internal(format!(
            "Bridge interface {name} configured Promisc Mode true, but it is off"
        )));
    }
    Ok(bridge)
}

/// Checks that one host interface of the result is the container's veth peer, a port of the bridge, and up.
fn check_port(
    socket: &mut Socket,
    conf: &Conf,
    result: &AddResult,
    bridge: &Link,
    container: &Link,
) -> Result<(), CniError> {
    for reported in result.interfaces.iter().filter(|interface| interface.sandbox.is_empty()) {
        let link =
            socket.link(LinkId::Name(&reported.name)).context(|| format!("look up {:?}", reported.name))?;
        let Some(port) = link.filter(|link| link.kind == veth::KIND && link.peer == Some(container.index))
        else {
            continue;
        };
        let name = &port.name;
        let defect = if container.peer != Some(port.index) {
            continue;
        } else if port.master != Some(bridge.index) {
            format!("{name:?} is not a port of bridge {:?}", bridge.name)
        } else if !port.is_up() {
            format!("bridge port {name:?} is down")
        } else if port.hairpin != conf.hairpin {
            format!(
                "bridge port {name:?} has hairpin mode {}, configuration says {}",
                port.hairpin, conf.hairpin
            )
        } else {
            return check::mac("interface", &port, reported);
        };
        return Err(CniError::internal(defect));
    }
    Err(CniError::internal(format!("CNI veth created for bridge {} was not found", bridge.name)))
}

fn check_masquerading(attachment: &Attachment<'_>, addresses: &[IpNetwork]) -> Result<(), CniError> {
    let mut netfilter = socket::netfilter()?;
    match masquerade::check(&mut netfilter, attachment, addresses)?.first() {
        None => Ok(()),
        Some(address) => Err(CniError::internal(format!("address {address} is not masqueraded"))),
    }
}

//! CHECK: compares the attachment in the kernel with `prevResult` and the configuration.
//!
//! CHECK looks only at what this plugin made. Other plugins of the chain check their own objects.

use cni_common::netns::Netns;
use cni_common::plugin::{AddRequest, Delegate, Verb};
use cni_common::spec::{AddResult, CniError, Context, Interface, IpConfig, Route};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::route::{Entry, MAIN_TABLE};
use ferrule_kernel::netlink::{Link, LinkId, Socket};
use ferrule_kernel::sysctl;
use ipnetwork::IpNetwork;
use std::os::unix::fs::MetadataExt;

use crate::config::Conf;
use crate::container::Container;
use crate::plan::{self, Plan};
use crate::{delegate, device, masquerade, veth};
use cni_common::plugin::Attachment;

/// Compares the attachment with `prevResult` and the configuration.
///
/// # Errors
/// The first object that is missing or altered; the IPAM plugin's error if its CHECK fails.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let netns = call.sandbox.netns()?;
    delegate(Delegate::ipam(call.env, call.config), Verb::Check)?;
    let result =
        call.prev_result.as_ref().ok_or_else(|| CniError::invalid_config("Required prevResult missing"))?;
    let reported = container_interface(call, netns, result)?;
    let ips = own_ips(result, call.ifname);

    let mut inside = Container::open(netns, call.ifname)?;
    let container = check_container(&mut inside, call.ifname, reported)?;
    check_addresses(&mut inside.socket, &container, &ips)?;
    check_routes(&mut inside.socket, &conf, result)?;

    let mut host = Socket::route().context(|| "open a netlink socket")?;
    let bridge = check_bridge(&mut host, &conf, result)?;
    check_port(&mut host, &conf, result, &bridge, &container)?;
    let addresses: Vec<IpNetwork> = ips.iter().map(|ip| ip.address).collect();
    if conf.is_gateway {
        check_gateways(&mut host, &bridge, &ips)?;
        check_forwarding(&addresses)?;
    }
    if conf.ip_masq {
        check_masquerading(&Attachment::from(call), &addresses)?;
    }
    Ok(())
}

/// The container's interface in `prevResult`. Its sandbox must be CNI_NETNS: the same path, or the same
/// device and inode.
fn container_interface<'a>(
    call: &AddRequest<'_>,
    netns: &Netns,
    result: &'a AddResult,
) -> Result<&'a Interface, CniError> {
    let reported = result.container_interfaces().find(|interface| interface.name == call.ifname);
    let reported = reported.ok_or_else(|| {
        CniError::internal(format!("prevResult has no interface {:?} in a container", call.ifname))
    })?;
    let is_same =
        || std::fs::metadata(&reported.sandbox).is_ok_and(|meta| netns.is((meta.dev(), meta.ino())));
    if reported.sandbox != call.sandbox.path() && !is_same() {
        return Err(CniError::internal(format!(
            "Sandbox in prevResult {} doesn't match configured netns: {}",
            reported.sandbox,
            call.sandbox.path()
        )));
    }
    Ok(reported)
}

/// The addresses of the interface that this plugin made: those with its index or without an index.
fn own_ips(result: &AddResult, ifname: &str) -> Vec<IpConfig> {
    let is_own = |ip: &&IpConfig| {
        ip.interface.is_none()
            || result.interface_of(ip).is_some_and(|i| i.name == ifname && !i.sandbox.is_empty())
    };
    result.ips.iter().filter(is_own).cloned().collect()
}

fn check_container(inside: &mut Container<'_>, ifname: &str, reported: &Interface) -> Result<Link, CniError> {
    let link = inside
        .interface()?
        .ok_or_else(|| CniError::internal(format!("interface {ifname:?} not found in the container")))?;
    if link.kind != veth::KIND {
        return Err(CniError::internal(format!("interface {ifname:?} of the container is not of type veth")));
    }
    check_mac(&link, reported)?;
    if !link.is_up() {
        return Err(CniError::internal(format!("interface {ifname:?} of the container is down")));
    }
    Ok(link)
}

fn check_mac(link: &Link, reported: &Interface) -> Result<(), CniError> {
    if reported.mac.is_empty() || reported.mac.eq_ignore_ascii_case(&link.mac.to_string()) {
        return Ok(());
    }
    let (name, was) = (&link.name, &reported.mac);
    Err(CniError::internal(format!("interface {name:?} has MAC address {}, prevResult says {was}", link.mac)))
}

fn check_addresses(socket: &mut Socket, container: &Link, ips: &[IpConfig]) -> Result<(), CniError> {
    let present = socket
        .addresses(container.index)
        .context(|| format!("list the addresses of {:?}", container.name))?;
    match ips.iter().find(|ip| !present.iter().any(|address| address.network == ip.address)) {
        None => Ok(()),
        Some(ip) => Err(CniError::internal(format!(
            "interface {:?} does not have address {}",
            container.name, ip.address
        ))),
    }
}

/// Checks that every route of the result is in its table, with its next hop and priority if the result has
/// them.
fn check_routes(socket: &mut Socket, conf: &Conf, result: &AddResult) -> Result<(), CniError> {
    let mut routes = result.routes.clone();
    plan::restore_attributes(&mut routes, &conf.ipam_routes);
    let of = |route: &Route| {
        let table = route.table.filter(|table| *table != 0).unwrap_or(MAIN_TABLE);
        (IpFamily::of(route.dst.ip()), table)
    };
    let mut tables: Vec<(IpFamily, u32)> = routes.iter().map(of).collect();
    tables.sort_unstable();
    tables.dedup();
    for table in tables {
        let present = socket.routes(table.0, table.1).context(|| "list the routes of the container")?;
        for route in routes.iter().filter(|route| of(route) == table) {
            let is_it = |entry: &Entry| {
                (entry.dst.ip(), entry.dst.prefix()) == (route.dst.network(), route.dst.prefix())
                    && route.gw.is_none_or(|gw| entry.gws.contains(&gw))
                    && (route.priority == 0 || route.priority == entry.priority)
            };
            if !present.iter().any(is_it) {
                let via = route.gw.map_or(String::new(), |gw| format!(" via {gw}"));
                return Err(CniError::internal(format!(
                    "route {}{via} not found in the container",
                    route.dst
                )));
            }
        }
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
    check_mac(&bridge, reported)?;
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
            return check_mac(&port, reported);
        };
        return Err(CniError::internal(defect));
    }
    Err(CniError::internal(format!("CNI veth created for bridge {} was not found", bridge.name)))
}

fn check_gateways(socket: &mut Socket, bridge: &Link, ips: &[IpConfig]) -> Result<(), CniError> {
    let present =
        socket.addresses(bridge.index).context(|| format!("list the addresses of {:?}", bridge.name))?;
    let plan = Plan { ips: ips.to_vec(), routes: Vec::new() };
    let gateways = plan.gateways();
    match gateways.iter().find(|gateway| !present.iter().any(|address| address.network == **gateway)) {
        None => Ok(()),
        Some(gateway) => {
            Err(CniError::internal(format!("bridge {:?} does not have address {gateway}", bridge.name)))
        }
    }
}

fn check_forwarding(addresses: &[IpNetwork]) -> Result<(), CniError> {
    for (is_ipv4, setting) in device::FORWARDING {
        if addresses.iter().any(|address| address.is_ipv4() == is_ipv4) {
            let value = sysctl::read(setting).context(|| format!("read {setting}"))?;
            if value != "1" {
                return Err(CniError::internal(format!("forwarding is off: {setting} is {value}")));
            }
        }
    }
    Ok(())
}

fn check_masquerading(attachment: &Attachment<'_>, addresses: &[IpNetwork]) -> Result<(), CniError> {
    let mut netfilter = Socket::netfilter().context(|| "open a netfilter socket")?;
    match masquerade::check(&mut netfilter, attachment, addresses)?.first() {
        None => Ok(()),
        Some(address) => Err(CniError::internal(format!("address {address} is not masqueraded"))),
    }
}

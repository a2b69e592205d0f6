//! Connections from 127.0.0.0/8 of the host to a container. The kernel sends them only over a link with
//! `route_localnet`.

use std::net::IpAddr;

use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::netlink::{Link, LinkId, link, route};
use ferrule_kernel::sysctl;
use ferrule_kit::socket;

/// Kinds of links that lead to containers only, even if `prevResult` does not list the link.
const CONTAINER_LINK_KINDS: [&str; 2] = ["veth", "bridge"];

fn setting(link: &str) -> String {
    format!("net/ipv4/conf/{link}/route_localnet")
}

/// The host's link to the container, if it leads to containers only: the route has no gateway, and
/// `prevResult` lists the link on the host or its kind is one of `CONTAINER_LINK_KINDS`. On other links,
/// such as the uplink, `route_localnet` would let other hosts reach 127.0.0.0/8.
///
/// # Errors
/// Code 999 if the kernel refuses a request.
fn container_link(result: &AddResult, ifname: &str, container: IpAddr) -> Result<Option<Link>, CniError> {
    let mut socket = socket::route()?;
    // Usually it is the first link on the host in the result, so that link is requested at once.
    let first = result.host_interfaces(ifname).next().map_or("lo", |interface| interface.name.as_str());
    let [route, first] = socket.request_each([route::find(container), link::get(LinkId::Name(first))]);
    let route = route::read(route).context(|| format!("find the route to {container}"))?;
    let Some(index) =
        route.filter(|route| !route.local && !route.routed && route.prefix > 0).and_then(|route| route.oif)
    else {
        return Ok(None);
    };
    let link = match link::read(first) {
        Ok(Some(link)) if link.index == index => Some(link),
        _ => socket.link(LinkId::Index(index)).context(|| format!("find link {index}"))?,
    };
    let named = |name: &str| result.host_interfaces(ifname).any(|interface| interface.name == name);
    Ok(link.filter(|link| named(&link.name) || CONTAINER_LINK_KINDS.contains(&link.kind.as_str())))
}

/// Enables `route_localnet` on the link to the container.
///
/// # Errors
/// Code 999 if the kernel refuses to write the setting.
pub fn enable(result: &AddResult, ifname: &str, container: IpAddr) -> Result<(), CniError> {
    match container_link(result, ifname, container)? {
        Some(link) if !link.routes_localnet => {
            sysctl::write(&setting(&link.name), "1").context(|| "unable to enable route_localnet")
        }
        _ => Ok(()),
    }
}

/// Checks that `route_localnet` is enabled.
///
/// # Errors
/// Code 999 if it is not.
pub fn check(result: &AddResult, ifname: &str, container: IpAddr) -> Result<(), CniError> {
    match container_link(result, ifname, container)? {
        Some(link) if !link.routes_localnet => Err(CniError::internal(format!(
            "{} is 0 instead of 1: packets from 127.0.0.1 do not reach {container}",
            setting(&link.name)
        ))),
        _ => Ok(()),
    }
}

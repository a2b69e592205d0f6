//! CHECK: compares the container's interface with `prevResult`.

use std::os::unix::fs::MetadataExt;

use cni_common::plugin::AddRequest;
use cni_common::spec::{AddResult, CniError, Context, Interface, IpConfig, Route};
use ferrule_kernel::netlink::route::{Entry, MAIN_TABLE};
use ferrule_kernel::netlink::{Link, Socket};
use ipnetwork::IpNetwork;

use crate::container::Container;
use crate::route::restore_attributes;

/// `prevResult`, which CHECK requires.
///
/// # Errors
/// The reference's text if the runtime sent none.
pub fn prev_result<'a>(call: &'a AddRequest<'_>) -> Result<&'a AddResult, CniError> {
    call.prev_result.as_ref().ok_or_else(|| CniError::invalid_config("Required prevResult missing"))
}

/// The container's interface in `prevResult`. Its sandbox must be CNI_NETNS: the same path, or the same
/// device and inode.
///
/// # Errors
/// `result` has no such interface, or it has one in another namespace.
pub fn reported<'a>(call: &AddRequest<'_>, result: &'a AddResult) -> Result<&'a Interface, CniError> {
    let reported = result.container_interfaces().find(|interface| interface.name == call.ifname);
    let reported = reported.ok_or_else(|| {
        CniError::internal(format!("prevResult has no interface {:?} in a container", call.ifname))
    })?;
    let netns = call.sandbox.netns()?;
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
pub fn own_ips(result: &AddResult, ifname: &str) -> Vec<IpConfig> {
    let is_own = |ip: &&IpConfig| {
        ip.interface.is_none()
            || result.interface_of(ip).is_some_and(|i| i.name == ifname && !i.sandbox.is_empty())
    };
    result.ips.iter().filter(is_own).cloned().collect()
}

/// Checks that the container's interface exists, is of this kind, is up and has the reported MAC address.
///
/// # Errors
/// The first difference, or the kernel's error.
pub fn link(container: &mut Container<'_>, kind: &str, reported: &Interface) -> Result<Link, CniError> {
    let ifname = &reported.name;
    let link = container
        .interface()?
        .ok_or_else(|| CniError::internal(format!("interface {ifname:?} not found in the container")))?;
    if link.kind != kind {
        return Err(CniError::internal(format!(
            "interface {ifname:?} of the container is not of type {kind}"
        )));
    }
    mac("interface", &link, reported)?;
    if !link.is_up() {
        return Err(CniError::internal(format!("interface {ifname:?} of the container is down")));
    }
    Ok(link)
}

/// Checks that the link has the reported MAC address. `what` names the link in the error.
///
/// # Errors
/// Both addresses, if they differ.
pub fn mac(what: &str, link: &Link, reported: &Interface) -> Result<(), CniError> {
    if reported.mac.is_empty() || reported.mac.eq_ignore_ascii_case(&link.mac.to_string()) {
        return Ok(());
    }
    let (name, was) = (&link.name, &reported.mac);
    Err(CniError::internal(format!("{what} {name:?} has MAC address {}, prevResult says {was}", link.mac)))
}

/// Checks that the link has these addresses. `what` names the link in the error.
///
/// # Errors
/// The first missing address, or the kernel's error.
pub fn addresses(
    socket: &mut Socket,
    what: &str,
    link: &Link,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    let name = &link.name;
    let present = socket.addresses(link.index).context(|| format!("list the addresses of {name:?}"))?;
    match addresses.iter().find(|wanted| !present.iter().any(|address| address.network == **wanted)) {
        None => Ok(()),
        Some(missing) => Err(CniError::internal(format!("{what} {name:?} does not have address {missing}"))),
    }
}

/// Checks that every route of the result is in its table, with its next hop and priority if the result has
/// them. `configured` are the routes of the `ipam` section.
///
/// # Errors
/// The first missing route, or the kernel's error.
pub fn routes(socket: &mut Socket, result: &AddResult, configured: &[Route]) -> Result<(), CniError> {
    let mut routes = result.routes.clone();
    restore_attributes(&mut routes, configured);
    let of =
        |route: &Route| (route.dst.is_ipv4(), route.table.filter(|table| *table != 0).unwrap_or(MAIN_TABLE));
    let mut tables: Vec<(bool, u32)> = routes.iter().map(of).collect();
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
                let dst = route.dst;
                return Err(CniError::internal(format!("route {dst}{via} not found in the container")));
            }
        }
    }
    Ok(())
}

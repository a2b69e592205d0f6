//! CHECK: compares the container's interface with `prevResult`.

use std::os::unix::fs::MetadataExt;

use cni_common::plugin::{AddRequest, Verb};
use cni_common::spec::{AddResult, CniError, Context, Interface, IpConfig, Route};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::addr::{self, Address, DAD_FAILED};
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{Answer, Link, LinkId, Socket, link};
use ferrule_kernel::sorted;
use ipnetwork::IpNetwork;

use crate::config::LinkConf;
use crate::container::Container;
use crate::plan::Plan;
use crate::route::restore_attributes;
use crate::{dad, ipam};

/// Runs CHECK of the IPAM plugin, then checks the container's interface: its kind, MAC address, state,
/// addresses and routes. Returns the link, and what `prevResult` says that it has.
pub fn container(call: &AddRequest<'_>, kind: &str, conf: &LinkConf) -> Result<(Link, Plan), CniError> {
    inspect(call, Some(kind), conf, true)
}

/// As [`container`], for a link of any kind.
pub fn container_of_any_kind(call: &AddRequest<'_>, conf: &LinkConf) -> Result<(Link, Plan), CniError> {
    inspect(call, None, conf, true)
}

/// As [`container`], for an interface that ADD has left down.
pub fn container_in_any_state(
    call: &AddRequest<'_>,
    kind: &str,
    conf: &LinkConf,
) -> Result<(Link, Plan), CniError> {
    inspect(call, Some(kind), conf, false)
}

fn inspect(
    call: &AddRequest<'_>,
    kind: Option<&str>,
    conf: &LinkConf,
    must_be_up: bool,
) -> Result<(Link, Plan), CniError> {
    let netns = call.sandbox.netns()?;
    ipam::call(call.env, call.config, Verb::Check)?;
    let result = prev_result(call)?;
    let reported = reported(call, result)?;
    let mut plan =
        Plan { ips: own_ips(result, call.ifname), routes: result.routes.clone(), ..Plan::default() };
    restore_attributes(&mut plan.routes, &conf.ipam_routes);
    let mut container = Container::open(netns, call.ifname)?;
    // The index is not known yet, so all addresses of the container are listed.
    let requests = [link::get(LinkId::Name(call.ifname)), addr::list(0)];
    let [found, present] = container.socket.request_each(requests);
    let link = link(found, kind, reported)?;
    let ifname = &link.name;
    ensure(!must_be_up || link.is_up(), || format!("interface {ifname:?} of the container is down"))?;
    let present = addr::read(present, link.index).context(|| format!("list the addresses of {ifname:?}"))?;
    has_addresses("interface", &link, &present, &plan.addresses())?;
    // Routes of a result name no interface.
    let are_own = result.container_interfaces().all(|interface| interface.name == call.ifname);
    routes(&mut container.socket, &link, are_own, &plan.addresses(), &plan.routes)?;
    Ok((link, plan))
}

/// An error with this text unless the condition holds.
pub fn ensure(condition: bool, text: impl FnOnce() -> String) -> Result<(), CniError> {
    if condition { Ok(()) } else { Err(CniError::internal(text())) }
}

/// `prevResult`, which CHECK requires.
pub fn prev_result<'a>(call: &'a AddRequest<'_>) -> Result<&'a AddResult, CniError> {
    call.prev_result.as_ref().ok_or_else(|| CniError::invalid_config("Required prevResult missing"))
}

/// The container's interface in `prevResult`. Its sandbox must be CNI_NETNS: the same path, or the same
/// device and inode.
fn reported<'a>(call: &AddRequest<'_>, result: &'a AddResult) -> Result<&'a Interface, CniError> {
    let reported = result.container_interfaces().find(|interface| interface.name == call.ifname);
    let reported = reported.ok_or_else(|| {
        CniError::internal(format!("prevResult has no interface {:?} in a container", call.ifname))
    })?;
    let (sandbox, netns) = (&reported.sandbox, call.sandbox.netns()?);
    let is_same = || std::fs::metadata(sandbox).is_ok_and(|meta| netns.is((meta.dev(), meta.ino())));
    ensure(sandbox == call.sandbox.path() || is_same(), || {
        let path = call.sandbox.path();
        format!("Sandbox in prevResult {sandbox} doesn't match configured netns: {path}")
    })?;
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

fn link(answer: Answer, kind: Option<&str>, reported: &Interface) -> Result<Link, CniError> {
    let ifname = &reported.name;
    let missing = || CniError::internal(format!("interface {ifname:?} not found in the container"));
    let found = link::read(answer).context(|| format!("look up {ifname:?} in the container"))?;
    let link = found.ok_or_else(missing)?;
    if let Some(kind) = kind {
        ensure(link.kind == kind, || format!("interface {ifname:?} of the container is not of type {kind}"))?;
    }
    mac("interface", &link, reported)?;
    Ok(link)
}

/// Checks that the link has the reported MAC address. `what` names the link in the error.
pub fn mac(what: &str, link: &Link, reported: &Interface) -> Result<(), CniError> {
    let (name, is, was) = (&link.name, link.mac.to_string(), &reported.mac);
    ensure(was.is_empty() || was.eq_ignore_ascii_case(&is), || {
        format!("{what} {name:?} has MAC address {is}, prevResult says {was}")
    })
}

/// Checks that the link has these addresses. `what` names the link in the error.
pub fn addresses(
    socket: &mut Socket,
    what: &str,
    link: &Link,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    let present =
        socket.addresses(link.index).context(|| format!("list the addresses of {:?}", link.name))?;
    has_addresses(what, link, &present, addresses)
}

/// Checks that these addresses of the link include the wanted ones. `what` names the link in the error.
fn has_addresses(
    what: &str,
    link: &Link,
    present: &[Address],
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    let name = &link.name;
    addresses.iter().try_for_each(|wanted| {
        let found = present.iter().find(|address| address.network == *wanted);
        let missing = || CniError::internal(format!("{what} {name:?} does not have address {wanted}"));
        let is_duplicate = found.ok_or_else(missing)?.flags & DAD_FAILED != 0;
        if is_duplicate { Err(dad::duplicate_of(name, *wanted)) } else { Ok(()) }
    })
}

/// Checks that every route is in its table, with its next hop and priority if it has them. It may be one next hop of a
/// multipath route. If `are_own`, it must lead through the link. A later plugin may have moved the routes of the main table:
/// `vrf` to the table of the VRF, `sbr` to the tables of rules from the link's addresses.
fn routes(
    socket: &mut Socket,
    link: &Link,
    are_own: bool,
    addresses: &[IpNetwork],
    routes: &[Route],
) -> Result<(), CniError> {
    let through = are_own.then_some(link.index);
    let of = |route: &Route| {
        let table = route.table.filter(|table| *table != 0).or(link.vrf_table).unwrap_or(MAIN_TABLE);
        (IpFamily::of(route.dst.ip()), table)
    };
    let missing =
        missing(socket, through, &routes.iter().map(|route| (route, of(route))).collect::<Vec<_>>())?;
    if missing.is_empty() {
        return Ok(());
    }
    let rules = socket.rules().context(|| "list the rules of the container")?;
    let own = rules.iter().filter(|rule| addresses.iter().any(|address| rule.is_from(address.ip())));
    let tables: Vec<u32> = own.map(|rule| rule.table).collect();
    for route in missing {
        let (family, _) = of(route);
        let elsewhere: Vec<_> = tables.iter().map(|table| (route, (family, *table))).collect();
        let is_moved =
            route.table.is_none() && self::missing(socket, through, &elsewhere)?.len() < elsewhere.len();
        ensure(is_moved, || {
            let via = route.gw.map_or(String::new(), |gw| format!(" via {gw}"));
            format!("route {}{via} not found in the container", route.dst)
        })?;
    }
    Ok(())
}

/// Those of the routes that are not in their table of their family, with a next hop through this link if one is given.
fn missing<'a>(
    socket: &mut Socket,
    through: Option<u32>,
    routes: &[(&'a Route, (IpFamily, u32))],
) -> Result<Vec<&'a Route>, CniError> {
    let mut missing = Vec::new();
    for table in sorted(routes.iter().map(|(_, table)| *table)) {
        let present = socket.routes(table.0, table.1).context(|| "list the routes of the container")?;
        let is_there = |route: &Route| {
            present.iter().any(|found| {
                let has_gw = |hops: &StoredRoute| route.gw.is_none_or(|gw| hops.gws.contains(&gw));
                (found.dst.ip(), found.dst.prefix()) == (route.dst.network(), route.dst.prefix())
                    && (route.priority == 0 || route.priority == found.priority)
                    && through.map_or_else(
                        || has_gw(found),
                        |link| found.through(link).is_some_and(|hops| has_gw(&hops)),
                    )
            })
        };
        missing.extend(
            routes.iter().filter(|(route, of)| *of == table && !is_there(route)).map(|(route, _)| *route),
        );
    }
    Ok(missing)
}

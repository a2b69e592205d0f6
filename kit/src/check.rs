//! CHECK: compares the container's interface with `prevResult`. [`repair`](crate::repair) starts from the same look at it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use cni_common::plugin::{AddRequest, Verb};
use cni_common::spec::{AddResult, CniError, Context, Interface, IpConfig, Route};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::addr::{self, Address, DAD_FAILED};
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{Answer, Link, LinkId, Socket, link};
use ipnetwork::IpNetwork;

use crate::config::LinkConf;
use crate::container::Container;
use crate::plan::Plan;
use crate::route::restore_attributes;
use crate::router_wait::may_be_of_router;
use crate::{address_wait, ipam};

/// Runs CHECK of the IPAM plugin, then checks the container's interface: its kind, if one is given, MAC address, state,
/// addresses and routes. Returns the link, and what `prevResult` says that it has.
///
/// # Errors
/// The first difference.
pub fn container(
    call: &AddRequest<'_>,
    kind: Option<&str>,
    conf: &LinkConf,
    must_be_up: bool,
) -> Result<(Link, Plan), CniError> {
    let missing = |ifname: &str| format!("interface {ifname:?} not found in the container");
    let mut inside = Inside::find(call, kind, conf, missing)?;
    let ifname = call.ifname;
    ensure(!must_be_up || inside.link.is_up(), || format!("interface {ifname:?} of the container is down"))?;
    inside.has_addresses()?;
    inside.accepts_ra()?;
    if let Some(Route { dst, gw, .. }) = inside.missing_routes()?.first() {
        let via = gw.map_or(String::new(), |gw| format!(" via {gw}"));
        return Err(CniError::internal(format!("route {dst}{via} not found in the container")));
    }
    Ok((inside.link, inside.plan))
}

/// The container's interface, and its part of `prevResult`.
pub struct Inside<'a> {
    /// The container.
    pub container: Container<'a>,
    /// The interface: it has the kind and the MAC address of the attachment.
    pub link: Link,
    /// Its addresses and routes in `prevResult`.
    pub plan: Plan,
    present: Vec<Address>,
    /// Whether all routes of the result lead through the interface.
    are_own: bool,
}

impl<'a> Inside<'a> {
    /// Runs CHECK of the IPAM plugin, then finds the interface.
    ///
    /// # Errors
    /// That of IPAM. The interface has another kind or MAC address. If the container has no such interface: the text of `missing`.
    pub fn find(
        call: &'a AddRequest<'_>,
        kind: Option<&str>,
        conf: &LinkConf,
        missing: fn(&str) -> String,
    ) -> Result<Self, CniError> {
        let netns = call.sandbox.netns()?;
        ipam::call(call.env, call.config, Verb::Check)?;
        let result = prev_result(call)?;
        let reported = reported(call, result)?;
        let wait_for_ra = conf.wait_for_ra;
        let mut ips = own_ips(result, call.ifname);
        // Those may have ended since.
        ips.retain(|ip| wait_for_ra.is_none() || !may_be_of_router(ip));
        let mut plan = Plan { ips, routes: result.routes.clone(), wait_for_ra, ..Plan::default() };
        restore_attributes(&mut plan.routes, &conf.ipam_routes);
        let mut container = Container::open(netns, call.ifname)?;
        // The index is not known yet, so all addresses of the container are listed.
        let requests = [link::get(LinkId::Name(call.ifname)), addr::list(0)];
        let [found, present] = container.socket.request_each(requests);
        let link = link(found, kind, reported, missing)?;
        let present =
            addr::read(present, link.index).context(|| format!("list the addresses of {:?}", link.name))?;
        // Routes of a result name no interface.
        let are_own = result.container_interfaces().all(|interface| interface.name == call.ifname);
        Ok(Inside { container, link, plan, present, are_own })
    }

    /// Checks that the interface has its addresses.
    pub(crate) fn has_addresses(&self) -> Result<(), CniError> {
        has_addresses("interface", &self.link, &self.present, &self.plan.addresses())
    }

    /// Checks that the interface accepts router advertisements, if an address shall come by them.
    pub(crate) fn accepts_ra(&self) -> Result<(), CniError> {
        ensure(self.plan.wait_for_ra.is_none() || self.link.accepts_ra, || {
            format!("interface {:?} of the container does not accept router advertisements", self.link.name)
        })
    }

    /// The routes that are not there, each with the table that it belongs to.
    pub(crate) fn missing_routes(&mut self) -> Result<Vec<Route>, CniError> {
        let addresses = self.plan.addresses();
        missing_routes(&mut self.container.socket, &self.link, self.are_own, &addresses, &self.plan.routes)
    }
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
    let is_same = || match (std::fs::metadata(sandbox), netns.identity()) {
        (Ok(found), Ok(own)) => own == (found.dev(), found.ino()),
        _ => false,
    };
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

fn link(
    answer: Answer,
    kind: Option<&str>,
    reported: &Interface,
    missing: fn(&str) -> String,
) -> Result<Link, CniError> {
    let ifname = &reported.name;
    let found = link::read(answer).context(|| format!("look up {ifname:?} in the container"))?;
    let link = found.ok_or_else(|| CniError::internal(missing(ifname)))?;
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

/// The host's interface of `prevResult` that the host's `end` of a pair is.
pub fn host_interface<'a>(result: &'a AddResult, end: &Link) -> Result<&'a Interface, CniError> {
    let name = &end.name;
    let reported = result.interfaces.iter().find(|one| one.sandbox.is_empty() && one.name == *name);
    let missing = || CniError::internal(format!("prevResult does not have the host interface {name:?}"));
    reported.ok_or_else(missing)
}

/// Checks that these addresses of the link include the wanted ones. `what` names the link in the error.
pub fn has_addresses(
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
        if is_duplicate { Err(address_wait::duplicate_of(name, *wanted)) } else { Ok(()) }
    })
}

/// The routes that are not in their table, with their next hop and priority if they have them. A route may be one next hop of a
/// multipath route. If `are_own`, it must lead through the link. A later plugin may have moved the routes of the main table:
/// `vrf` to the table of the VRF, `sbr` to the tables of rules from the link's addresses.
fn missing_routes(
    socket: &mut Socket,
    link: &Link,
    are_own: bool,
    addresses: &[IpNetwork],
    routes: &[Route],
) -> Result<Vec<Route>, CniError> {
    let through = are_own.then_some(link.index);
    let mut tables = RouteTables { socket, through, routes, present: BTreeMap::new() };
    let (mut of_rules, mut missing) = (None, Vec::new());
    for (at, route) in routes.iter().enumerate() {
        let mut table = route.table.filter(|table| *table != 0).or(link.vrf_table).unwrap_or(MAIN_TABLE);
        let mut is_there = tables.has(table, at)?;
        if !is_there && route.table.is_none() {
            if of_rules.is_none() {
                let mut rules = tables.socket.rules().context(|| "list the rules of the container")?;
                rules.retain(|rule| addresses.iter().any(|address| rule.is_from(address.ip())));
                of_rules = Some(rules);
            }
            for rule in of_rules.iter().flatten() {
                is_there = is_there || tables.has(rule.table, at)?;
                table = rule.table;
            }
        }
        if !is_there {
            missing.push(Route { table: Some(table), ..route.clone() });
        }
    }
    Ok(missing)
}

/// The routing tables of the container that CHECK has looked at. A container may have a million routes, so none is kept.
struct RouteTables<'s> {
    socket: &'s mut Socket,
    /// The link that routes must lead through.
    through: Option<u32>,
    /// The wanted routes.
    routes: &'s [Route],
    /// Which of them a table has.
    present: BTreeMap<(IpFamily, u32), Vec<bool>>,
}

impl RouteTables<'_> {
    /// Whether the table has the wanted route with this number.
    fn has(&mut self, table: u32, at: usize) -> Result<bool, CniError> {
        let key = (IpFamily::of(self.routes[at].dst.ip()), table);
        if !self.present.contains_key(&key) {
            let mut present = vec![false; self.routes.len()];
            let (wanted, through) = (self.routes, self.through);
            let mut visit = |found: &StoredRoute| {
                for (route, is_present) in wanted.iter().zip(&mut present) {
                    *is_present = *is_present || is_it(found, route, through);
                }
            };
            let visited = self.socket.visit_routes(key.0, table, through, &mut visit);
            visited.context(|| "list the routes of the container")?;
            self.present.insert(key, present);
        }
        Ok(self.present.get(&key).is_some_and(|present| present[at]))
    }
}

/// Whether the found route is the wanted one, if it must lead through a link by that.
fn is_it(found: &StoredRoute, route: &Route, through: Option<u32>) -> bool {
    let has_gw = |hops: &StoredRoute| route.gw.is_none_or(|gw| hops.gws.contains(&gw));
    (found.dst.ip(), found.dst.prefix()) == (route.dst.network(), route.dst.prefix())
        && (route.priority == 0 || route.priority == found.priority)
        && through.map_or_else(|| has_gw(found), |link| found.through(link).is_some_and(|hops| has_gw(&hops)))
}

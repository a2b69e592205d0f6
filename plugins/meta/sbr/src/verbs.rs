//! The steps of ADD, CHECK and DEL.

use std::net::IpAddr;

use cni_common::plugin::{AddRequest, DelRequest};
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::addr::{Address, NO_PREFIX_ROUTE};
use ferrule_kernel::netlink::route::{self, MAIN_TABLE, Route};
use ferrule_kernel::netlink::rule::{self, Rule};
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{Link, LinkId, addr};
use ferrule_kit::check::{ensure, prev_result};
use ferrule_kit::container::Container;
use ferrule_kit::route::subnet;
use ferrule_kit::socket;
use ferrule_kit::steps::{Step, UndoStack, run_all};
use ferrule_kit::table::{self, Tables};
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::config::Conf;
use crate::plan::{OURS, OURS_FIXED, Source, moved, sources, stale};

/// The first table that ADD takes.
pub(crate) const FIRST_TABLE: u32 = 100;
/// The metric of the kernel's own route to the subnet of an IPv6 address is 256. A hint comes before it.
const HINT_METRIC: u32 = 255;
/// The route is in the main table, or the container has changed so much that it cannot be there.
const NOT_POSSIBLE: [Errno; 8] = [
    Errno::EEXIST,
    Errno::ENETDOWN,
    Errno::ENETUNREACH,
    Errno::EHOSTUNREACH,
    Errno::EINVAL,
    Errno::ENODEV,
    Errno::ENOENT,
    Errno::EOPNOTSUPP,
];
/// `RT_SCOPE_LINK`
const SCOPE_LINK: u32 = 253;

/// Adds a rule for each address and fills its table, and removes the routes from the main table at last. Until then,
/// the main table serves packets that find no route in the table. Leaves out addresses that the interface does not have.
/// With `table`, adds only the rules, for all addresses.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let chained = || CniError::invalid_config("This plugin must be called as chained plugin");
    let result = call.prev_result.as_ref().ok_or_else(chained)?;
    let mut sources = sources(&conf, result, call.ifname)?;
    let netns = call.sandbox.netns()?;
    let mut container = Container::open(netns, call.ifname)?;
    let _lock = table::lock(netns)?;
    let link = interface(&mut container, call.ifname)?;
    let steps = if let Some(table) = conf.table {
        let present = container.socket.rules().context(|| "list the container's rules")?;
        sources.iter().filter_map(|source| rule_step(source, table, OURS_FIXED, &present)).collect()
    } else {
        let present = addresses(&mut container, &link)?;
        let (there, absent): (Vec<_>, Vec<_>) =
            sources.into_iter().partition(|source| find(&present, source).is_some());
        sources = there;
        for source in absent {
            remark!("sbr: no rule for {}: {:?} does not have the address", source.address, link.name);
        }
        steps(&conf, &sources, &link, &Tables::read(&mut container.socket)?)
    };
    UndoStack::default().run(&mut container.socket, steps)?;
    Ok(result.clone())
}

pub(crate) fn interface(container: &mut Container<'_>, ifname: &str) -> Result<Link, CniError> {
    let missing = || CniError::internal(format!("Cannot find network interface {ifname}: Link not found"));
    container.interface()?.ok_or_else(missing)
}

pub(crate) fn addresses(container: &mut Container<'_>, link: &Link) -> Result<Vec<Address>, CniError> {
    let present = container.socket.addresses(link.index);
    present.context(|| format!("list the addresses of {:?}", link.name))
}

pub(crate) fn find<'a>(present: &'a [Address], source: &Source) -> Option<&'a Address> {
    present.iter().find(|address| address.network.ip() == source.address.ip())
}

fn steps(conf: &Conf, sources: &[Source], link: &Link, tables: &Tables) -> Vec<Step> {
    let moved = moved(&tables.routes, link.index, sources);
    let mut free = tables.free(FIRST_TABLE);
    let mut steps = Vec::new();
    for source in sources {
        // After a lost answer to ADD, the runtime may repeat it.
        let former =
            tables.rules.iter().find(|rule| rule.is_from(source.address.ip()) && rule.protocol == OURS);
        let Some(table) = former.map(|rule| rule.table).or_else(|| free.next()) else { break };
        steps.extend(rule_step(source, table, OURS, &tables.rules));
        let routes = source.routes(&moved, sources);
        let has_default = routes.iter().any(|route| route.dst.prefix() == 0);
        steps.extend(routes.into_iter().map(|route| {
            let what = format!("Failed to add route {} to table {table}", route.dst);
            Step::new(what, route.add_to(table)).undone_by(route.delete_from(table)).unless(&[Errno::EEXIST])
        }));
        if let Some(gateway) = source.gateway.filter(|_| !has_default) {
            let dst = any(source.family());
            let default = Route { gw: Some(gateway), table: Some(table), ..bare(dst) };
            let what = format!("Failed to add default route to {gateway}");
            steps.push(route_step(what, link, &default));
        }
    }
    if conf.source_hints {
        steps.extend(sources.iter().filter_map(|source| hint(source, link, &moved)));
    }
    // The reverse order: undone, routes without a next hop come first.
    let mut leaving: Vec<&StoredRoute> = moved.iter().collect();
    leaving.retain(|route| !conf.source_hints || !route.gws.is_empty());
    leaving.sort_by_key(|route| route.gws.is_empty());
    steps.extend(leaving.into_iter().map(|route| {
        let what = format!("Failed to delete route {}", route.dst);
        Step::new(what, route.delete_from(MAIN_TABLE))
            .undone_by(route.add_to(MAIN_TABLE))
            .unless(&[Errno::ESRCH])
    }));
    steps
}

/// The route in the main table to the subnet of the address, with the address as source. `None` if it is there.
fn hint(source: &Source, link: &Link, present: &[StoredRoute]) -> Option<Step> {
    let (address, dst) = (source.address.ip(), subnet(source.address)?);
    let is_it = |route: &StoredRoute| route.gws.is_empty() && (route.dst, route.src) == (dst, Some(address));
    if present.iter().any(is_it) {
        return None;
    }
    let (scope, priority) = match source.family() {
        IpFamily::V4 => (Some(SCOPE_LINK), 0),
        IpFamily::V6 => (None, HINT_METRIC),
    };
    let route = Route { src: Some(address), scope, priority, ..bare(dst) };
    Some(route_step(format!("Failed to add route {dst} with source {address}"), link, &route))
}

/// `None` if there is such a rule: the kernel would add another one with another priority.
pub(crate) fn rule_step(source: &Source, table: u32, protocol: u8, present: &[Rule]) -> Option<Step> {
    let rule = Rule::from(source.address.ip(), table, protocol);
    if present.iter().any(|there| (there.src, there.table) == (rule.src, table)) {
        return None;
    }
    let what = format!("failed to add rule 'from {} lookup {table}'", source.address.ip());
    Some(Step::new(what, rule::add(&rule)).undone_by(rule::delete(&rule)))
}

pub(crate) fn route_step(what: String, link: &Link, route: &Route) -> Step {
    Step::new(what, route::add(link.index, route))
        .undone_by(route::delete(link.index, route))
        .unless(&[Errno::EEXIST])
}

pub(crate) fn any(family: IpFamily) -> IpNetwork {
    let ip: IpAddr = match family {
        IpFamily::V4 => [0; 4].into(),
        IpFamily::V6 => [0; 16].into(),
    };
    IpNetwork::new(ip, 0).unwrap_or(ip.into())
}

pub(crate) fn bare(dst: IpNetwork) -> Route {
    Route { protocol: OURS, ..ferrule_kit::route::of_result(&cni_common::spec::Route::new(dst, None)) }
}

/// Checks the interface, and for each address: it is there, its rule, and in its table the default route, the route to its
/// subnet and the result's routes. An address with neither a rule nor a place on the interface is one that ADD left out. With `table`, checks only the
/// rule of each address.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let ifname = call.ifname;
    let result = prev_result(call)?;
    let sources = sources(&conf, result, ifname)?;
    let mut container = Container::open(call.sandbox.netns()?, ifname)?;
    let link = interface(&mut container, ifname)?;
    ensure(link.is_up(), || format!("interface {ifname:?} of the container is down"))?;
    let present = addresses(&mut container, &link)?;
    let tables = Tables::read(&mut container.socket)?;
    for source in &sources {
        let ip = source.address.ip();
        let is_it = |rule: &&Rule| rule.is_from(ip) && conf.table.is_none_or(|table| table == rule.table);
        let to = conf.table.map_or(String::new(), |table| format!(" lookup {table}"));
        let missing = || CniError::internal(format!("rule 'from {ip}{to}' not found in the container"));
        let rule = tables.rules.iter().find(is_it);
        if conf.table.is_some() {
            rule.ok_or_else(missing)?;
            continue;
        }
        let (address, rule) = match (find(&present, source), rule) {
            (None, None) => continue,
            (None, Some(_)) => {
                let msg = format!("interface {ifname:?} does not have address {}", source.address);
                return Err(CniError::internal(msg));
            }
            (Some(address), rule) => (address, rule.ok_or_else(missing)?),
        };
        let table = rule.table;
        let gateway = source.gateway.filter(|_| source.is_static);
        let absent = |dst| format!("route {dst} dev {ifname} not found in table {table} of the container");
        // The kernel has made a route to the subnet, which ADD has moved.
        let subnet = subnet(address.network).filter(|_| address.flags & NO_PREFIX_ROUTE == 0);
        let default = source.gateway.map(|_| any(source.family()));
        for (dst, gateway) in
            default.map(|dst| (dst, gateway)).into_iter().chain(subnet.map(|dst| (dst, None)))
        {
            let is_it =
                |there: &StoredRoute| there.table == table && is_through(there, dst, gateway, link.index);
            ensure(tables.routes.iter().any(is_it), || absent(dst))?;
        }
        for route in source.reported(result).filter(|route| route.dst.prefix() != 0) {
            // ADD does not move a route that has next hops through other links too.
            let is_it = |there: &StoredRoute| {
                is_through(there, route.dst, route.gw, link.index)
                    && (there.table == table || there.of_link(link.index).is_none())
            };
            ensure(tables.routes.iter().any(is_it), || absent(route.dst))?;
        }
    }
    Ok(())
}

/// Whether the route leads through the link, and through the gateway if there is one.
pub(crate) fn is_through(route: &StoredRoute, dst: IpNetwork, gateway: Option<IpAddr>, link: u32) -> bool {
    let has = |gateway| route.gws.contains(&gateway);
    route.dst == dst && route.links.contains(&link) && gateway.is_none_or(has)
}

/// Removes the rules, see [`stale`]. The routes that ADD moved return to the main table before that, if the kernel accepts
/// them there. Does not look at the configuration.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let Some(netns) = call.netns.opened() else { return Ok(()) };
    let mut socket = socket::route_in(netns)?;
    let _lock = table::lock_for_del(netns);
    let link = socket.link(LinkId::Name(call.ifname));
    let link = link.context(|| format!("find {:?} in the container", call.ifname))?;
    let addresses = socket.request(addr::list(0));
    let addresses = addr::read_all(addresses).context(|| "list the addresses of the container")?;
    let former: Vec<IpAddr> = call
        .prev_result
        .iter()
        .flat_map(|result| result.ips_of(call.ifname))
        .map(|ip| ip.address.ip())
        .collect();
    let rules = socket.rules().context(|| "list the container's rules")?;
    let stale = stale(rules, &addresses, link.map(|link| link.index), &former);
    let mut steps = Vec::new();
    if stale.has_tables() {
        let routes = socket.stored_routes().context(|| "list the container's routes")?;
        steps = steps_back(&stale.routes(&routes));
    }
    steps.extend(stale.rules.iter().map(|rule| {
        let from = rule.src.map_or(String::new(), |src| src.ip().to_string());
        let what = format!("Failed to delete rule 'from {from} lookup {}'", rule.table);
        Step::new(what, rule::delete(rule)).unless(&[Errno::ENOENT])
    }));
    run_all(&mut socket, steps)
}

/// Moves the routes to the main table, and removes those that ADD made.
fn steps_back(own: &[StoredRoute]) -> Vec<Step> {
    let back = own.iter().filter(|route| route.protocol != OURS).map(|route| {
        let what = format!("Failed to move route {} back to the main table", route.dst);
        Step::new(what, route.add_to(MAIN_TABLE)).unless(&NOT_POSSIBLE)
    });
    let gone = own.iter().map(|route| {
        let what = format!("Failed to delete route {} from table {}", route.dst, route.table);
        Step::new(what, route.delete_from(route.table)).unless(&[Errno::ESRCH, Errno::ENODEV])
    });
    back.chain(gone).collect()
}

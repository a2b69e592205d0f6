//! Repair: the rules and routes that CHECK refuses, from the result. Tables that ADD has filled keep their numbers.

use std::net::IpAddr;

use cni_common::plugin::AddRequest;
use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::netlink::Link;
use ferrule_kernel::netlink::addr::{Address, NO_PREFIX_ROUTE};
use ferrule_kernel::netlink::link::{self, IFF_UP};
use ferrule_kernel::netlink::route::{MAIN_TABLE, Route};
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kit::check::prev_result;
use ferrule_kit::container::Container;
use ferrule_kit::route::{of_result, through_gateways, to_subnet};
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::table::{self, Tables};
use nix::errno::Errno;

use crate::config::{BUILT_IN, Conf};
use crate::plan::{OURS, OURS_FIXED, Source, moved, sources};
use crate::verbs::{FIRST_TABLE, addresses, any, bare, find, interface, is_through, route_step, rule_step};

/// Sets the link up, and adds the missing rules and routes. Leaves out addresses that the interface does not have: the plugin
/// that made it adds them first.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let result = prev_result(call)?;
    let sources = sources(&conf, result, call.ifname)?;
    let netns = call.sandbox.netns()?;
    let mut container = Container::open(netns, call.ifname)?;
    let _lock = table::lock(netns)?;
    let link = interface(&mut container, call.ifname)?;
    if !link.is_up() {
        let up = Step::new(format!("set {:?} up", link.name), link::set_flags(link.index, IFF_UP, IFF_UP));
        UndoStack::default().run(&mut container.socket, vec![up])?;
    }
    let steps = if let Some(table) = conf.table {
        let present = container.socket.rules().context(|| "list the container's rules")?;
        sources.iter().filter_map(|source| rule_step(source, table, OURS_FIXED, &present)).collect()
    } else {
        let present = addresses(&mut container, &link)?;
        let there = |source: Source| Some((find(&present, &source)?, source));
        let sources: Vec<_> = sources.into_iter().filter_map(there).collect();
        steps(&conf, &sources, &link, &Tables::read(&mut container.socket)?, result)
    };
    UndoStack::default().run(&mut container.socket, steps)?;
    Ok(())
}

fn steps(
    conf: &Conf,
    sources: &[(&Address, Source)],
    link: &Link,
    tables: &Tables,
    result: &AddResult,
) -> Vec<Step> {
    let (mut steps, mut leaving, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    let all: Vec<Source> = sources.iter().map(|(_, source)| source.clone()).collect();
    let in_main = moved(&tables.routes, link.index, &all);
    let mut free = tables.free(FIRST_TABLE);
    for (address, source) in sources {
        let orphan = || orphan(source, link, tables, &taken);
        let Some(table) = rule_table(source, tables).or_else(orphan).or_else(|| free.next()) else { break };
        taken.push(table);
        steps.extend(rule_step(source, table, OURS, &tables.rules));
        for route in routes(source, address, result, &link.name) {
            let is_it = |there: &StoredRoute| is_through(there, route.dst, route.gw, link.index);
            if !tables.routes.iter().any(|there| there.table == table && is_it(there)) {
                let what = format!("Failed to add route {} to table {table}", route.dst);
                steps.push(route_step(what, link, &Route { table: Some(table), ..route }));
            }
            // The kernel or another plugin has added it to the main table again.
            let leaves = |there: &&StoredRoute| is_it(there) && !(conf.source_hints && there.gws.is_empty());
            leaving.extend(in_main.iter().filter(leaves).map(|there| {
                Step::new(format!("Failed to delete route {}", there.dst), there.delete_from(MAIN_TABLE))
                    .undone_by(there.add_to(MAIN_TABLE))
                    .unless(&[Errno::ESRCH])
            }));
        }
    }
    steps.extend(leaving.into_iter().rev());
    steps
}

/// The table of the address's rule. ADD makes none to a built-in table.
fn rule_table(source: &Source, tables: &Tables) -> Option<u32> {
    let ip: IpAddr = source.address.ip();
    let tables = tables.rules.iter().filter(|rule| rule.is_from(ip)).map(|rule| rule.table);
    tables.into_iter().find(|table| !BUILT_IN.contains(&i64::from(*table)))
}

/// A table with routes of the address through the link to which no rule leads: its rule is gone.
fn orphan(source: &Source, link: &Link, tables: &Tables, taken: &[u32]) -> Option<u32> {
    let is_orphan = |route: &&StoredRoute| {
        let table = route.table;
        let is_used = || taken.contains(&table) || tables.rules.iter().any(|rule| rule.table == table);
        table >= FIRST_TABLE
            && !BUILT_IN.contains(&i64::from(table))
            && route.links.contains(&link.index)
            && source.has(route)
            && !is_used()
    };
    tables.routes.iter().find(is_orphan).map(|route| route.table)
}

/// The routes of the address that ADD has moved or made, those without a next hop first. DEL moves those back into the main
/// table that are not [`OURS`].
fn routes(source: &Source, address: &Address, result: &AddResult, ifname: &str) -> Vec<Route> {
    let ip = source.address.ip();
    let mut routes = if address.flags & NO_PREFIX_ROUTE == 0 {
        to_subnet(address.network).into_iter().collect()
    } else {
        let own: Vec<_> = result.ips_of(ifname).filter(|own| own.address.ip() == ip).cloned().collect();
        through_gateways(&own)
    };
    routes.extend(source.reported(result).map(of_result));
    if let Some(gateway) = source.gateway.filter(|_| !routes.iter().any(|route| route.dst.prefix() == 0)) {
        routes.push(Route { gw: Some(gateway), ..bare(any(source.family())) });
    }
    routes
}

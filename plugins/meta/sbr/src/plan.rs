//! Which routes go into which table. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_common::spec::{AddResult, CniError, Route};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::addr::Address;
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::rule::Rule;
use ferrule_kernel::netlink::stored_route::{BY_ROUTER, StoredRoute};
use ipnetwork::IpNetwork;

use crate::config::{BUILT_IN, Conf};

/// The protocol number of our rules and routes, which no program of iproute2's list has.
pub const OURS: u8 = 67;
/// The protocol number of the rules to a table of the configuration. Its routes are not ours.
pub const OURS_FIXED: u8 = 68;

/// An address of the interface, from which packets get a table of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The address with its prefix length.
    pub address: IpNetwork,
    /// Its default gateway, if the network has one.
    pub gateway: Option<IpAddr>,
    /// Whether the configuration names the gateway.
    pub is_static: bool,
}

/// The addresses of the interface with their gateways: those of the configuration, of the addresses, or of a default
/// route of the result.
///
/// # Errors
/// The interface has no address.
pub fn sources(conf: &Conf, result: &AddResult, ifname: &str) -> Result<Vec<Source>, CniError> {
    let default = |family| {
        let routes = result.routes.iter().filter(|route| route.dst.prefix() == 0);
        routes.filter_map(|route| route.gw).find(|gw| IpFamily::of(*gw) == family)
    };
    let sources: Vec<Source> = result
        .ips_of(ifname)
        .map(|ip| {
            let family = IpFamily::of(ip.address.ip());
            let configured = conf.gateways[family as usize];
            let gateway = configured.or(ip.gateway).or_else(|| default(family));
            Source { address: ip.address, gateway, is_static: configured.is_some() }
        })
        .collect();
    if sources.is_empty() {
        return Err(CniError::invalid_config(format!("No IP addresses supplied on interface: {ifname}")));
    }
    Ok(sources)
}

impl Source {
    /// The family of the address.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.address.ip())
    }

    /// Whether the route is one of this address: by its source or its next hop.
    pub fn has(&self, route: &StoredRoute) -> bool {
        self.family() == route.family
            && route.src.iter().chain(&route.gws).any(|ip| self.address.contains(*ip))
    }

    /// Those of the result's routes that ADD finds in the main table and moves into the table of this address.
    pub fn reported<'a>(&self, result: &'a AddResult) -> impl Iterator<Item = &'a Route> {
        let Source { address, is_static, .. } = *self;
        let is_near = move |gw| address.contains(gw);
        let belongs = move |route: &&Route| {
            let is_moved = route.table.is_none() && !is_local(route.dst.network());
            is_moved && route.gw.is_some_and(is_near) && !(is_static && route.dst.prefix() == 0)
        };
        result.routes.iter().filter(belongs)
    }

    /// Those of the routes that belong into the table of this address, those without a next hop first: those of the
    /// address, and those that belong to no address of the family. A configured gateway replaces the default routes.
    pub fn routes<'a>(&self, routes: &'a [StoredRoute], all: &[Source]) -> Vec<&'a StoredRoute> {
        let belongs = |route: &&StoredRoute| {
            let is_common = self.family() == route.family && !all.iter().any(|source| source.has(route));
            (self.has(route) || is_common) && !(self.is_static && route.dst.prefix() == 0)
        };
        let mut chosen: Vec<_> = routes.iter().filter(belongs).collect();
        chosen.sort_by_key(|route| !route.gws.is_empty());
        chosen
    }
}

/// The routes that leave the main table: those through only this link, of the families of the addresses, and the next hops
/// through this link of IPv6 multipath routes. Link-local and multicast routes stay, and those of router advertisements,
/// which the kernel renews there.
pub fn moved(routes: &[StoredRoute], link: u32, sources: &[Source]) -> Vec<StoredRoute> {
    let is_moved = |route: &&StoredRoute| {
        route.table == MAIN_TABLE
            && route.is_unicast
            && route.protocol != BY_ROUTER
            && sources.iter().any(|source| source.family() == route.family)
            && !is_local(route.dst.network())
    };
    routes.iter().filter(is_moved).filter_map(|route| route.of_link(link)).collect()
}

/// What DEL removes.
#[derive(Debug, Default)]
pub struct Stale {
    /// The rules.
    pub rules: Vec<Rule>,
    /// The tables that ADD has filled, with their families.
    tables: BTreeSet<(IpFamily, u32)>,
    /// The links that have the addresses of the rules.
    links: BTreeSet<u32>,
}

/// What DEL removes: the rules for the addresses that the interface `link` has now; those for `former` addresses, and those
/// of sbr, if no link has the address; and those of sbr for `former` addresses, also if a link of another name has it. The
/// container may have renamed the interface.
pub fn stale(rules: Vec<Rule>, addresses: &[(u32, Address)], link: Option<u32>, former: &[IpAddr]) -> Stale {
    let present: BTreeSet<(IpAddr, u32)> =
        addresses.iter().map(|(link, address)| (address.network.ip(), *link)).collect();
    let mut stale = Stale { links: link.into_iter().collect(), ..Stale::default() };
    for rule in rules {
        let Some(ip) = rule.src.map(|src| src.ip()).filter(|ip| rule.is_from(*ip)) else { continue };
        let is_former = former.contains(&ip);
        let mut links = present.range((ip, 0)..=(ip, u32::MAX)).map(|(_, link)| *link);
        let is_stale = match (is_ours(&rule), link.is_some_and(|link| present.contains(&(ip, link)))) {
            (_, true) => true,
            (true, false) => is_former || links.next().is_none(),
            (false, false) => is_former && links.next().is_none(),
        };
        if !is_stale {
            continue;
        }
        if rule.protocol == OURS && !BUILT_IN.contains(&i64::from(rule.table)) {
            stale.tables.insert((rule.family, rule.table));
            stale.links.extend(present.range((ip, 0)..=(ip, u32::MAX)).map(|(_, link)| *link));
        }
        stale.rules.push(rule);
    }
    stale
}

fn is_ours(rule: &Rule) -> bool {
    matches!(rule.protocol, OURS | OURS_FIXED)
}

impl Stale {
    /// Whether ADD has filled a table.
    pub fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    /// The routes in the tables, and those that ADD made in the main table; those without a next hop first, through which
    /// others are reachable.
    pub fn routes(&self, routes: &[StoredRoute]) -> Vec<StoredRoute> {
        let is_own = |route: &&StoredRoute| {
            self.tables.contains(&(route.family, route.table))
                || (route.table, route.protocol) == (MAIN_TABLE, OURS)
        };
        let parts = |route: &StoredRoute| -> Vec<StoredRoute> {
            self.links.iter().filter_map(|link| route.of_link(*link)).collect()
        };
        let mut own: Vec<StoredRoute> = routes.iter().filter(is_own).flat_map(parts).collect();
        own.sort_by_key(|route| !route.gws.is_empty());
        own
    }
}

/// Whether the address is link-local or multicast, in IPv6.
fn is_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local() || ip.is_multicast())
}

#[cfg(test)]
mod tests {
    use cni_common::spec::{Interface, IpConfig};
    use ferrule_kernel::netlink::route;

    use super::*;

    fn stored(link: u32, dst: &str, gw: &str, src: &str) -> StoredRoute {
        let route = route::Route {
            dst: dst.parse().unwrap(),
            gw: gw.parse().ok(),
            src: src.parse().ok(),
            onlink: false,
            mtu: 0,
            advmss: 0,
            priority: 0,
            table: None,
            scope: None,
            protocol: 0,
        };
        let body = route::add(link, &route).finish(1, 0).unwrap().split_off(16);
        StoredRoute::parse(&body).unwrap()
    }

    fn source(address: &str, gateway: &str) -> Source {
        Source { address: address.parse().unwrap(), gateway: gateway.parse().ok(), is_static: false }
    }

    #[test]
    fn gateways_of_the_configuration_the_address_and_the_routes() {
        let ip = |address: &str, gateway: &str, interface| IpConfig {
            address: address.parse().unwrap(),
            gateway: gateway.parse().ok(),
            interface,
        };
        let interface = |sandbox: &str| Interface {
            name: "net1".to_owned(),
            sandbox: sandbox.to_owned(),
            ..Interface::default()
        };
        let default = |dst: &str, gw: &str| Route::new(dst.parse().unwrap(), gw.parse().ok());
        let mut result = AddResult {
            interfaces: vec![interface(""), interface("/run/netns/pod")],
            ips: vec![
                ip("10.0.0.9/24", "10.0.0.1", Some(0)),
                ip("10.1.0.5/24", "10.1.0.1", Some(1)),
                ip("fd00::5/64", "", None),
            ],
            routes: vec![default("0.0.0.0/0", "10.1.0.9"), default("::/0", "fd00::1")],
            ..AddResult::default()
        };
        let all = sources(&Conf::default(), &result, "net1").unwrap();
        assert_eq!(all, [source("10.1.0.5/24", "10.1.0.1"), source("fd00::5/64", "fd00::1")]);
        let conf = Conf { gateways: ["10.1.0.7".parse().ok(), None], ..Conf::default() };
        let all = sources(&conf, &result, "net1").unwrap();
        assert_eq!((all[0].gateway, all[0].is_static), ("10.1.0.7".parse().ok(), true));
        // Without any sandbox the name decides.
        result.interfaces = vec![interface("")];
        assert_eq!(sources(&conf, &result, "net1").unwrap().len(), 3);
        result.interfaces = vec![interface("/run/netns/pod")];
        result.ips.truncate(1);
        let error = sources(&conf, &result, "net2").unwrap_err();
        assert_eq!(error.msg, "No IP addresses supplied on interface: net2");
    }

    #[test]
    fn each_table_gets_the_routes_of_its_address_and_the_common_ones() {
        let routes = [
            stored(7, "10.8.0.0/16", "10.1.0.1", ""),
            stored(7, "10.1.0.0/24", "", "10.1.0.5"),
            stored(7, "10.2.0.0/24", "", "10.2.0.5"),
            stored(7, "10.9.0.0/16", "", ""),
            stored(7, "0.0.0.0/0", "172.16.0.1", ""),
            stored(7, "fd00::/64", "", ""),
            stored(7, "fe80::/64", "", ""),
            stored(8, "10.3.0.0/16", "", ""),
        ];
        let mut all = [source("10.1.0.5/24", ""), source("10.2.0.5/24", "")];
        let list = |routes: &[&StoredRoute]| {
            routes.iter().map(|route| route.dst.to_string()).collect::<Vec<_>>().join(" ")
        };
        let moved = |all: &[Source]| moved(&routes, 7, all);
        let list_moved = |all: &[Source]| list(&moved(all).iter().collect::<Vec<_>>());
        assert_eq!(list_moved(&all), "10.8.0.0/16 10.1.0.0/24 10.2.0.0/24 10.9.0.0/16 0.0.0.0/0");
        assert_eq!(list_moved(&[source("fd00::5/64", "")]), "fd00::/64");
        let of = |source: &Source, all: &[Source]| list(&source.routes(&moved(all), all));
        assert_eq!(of(&all[0], &all), "10.1.0.0/24 10.9.0.0/16 10.8.0.0/16 0.0.0.0/0");
        assert_eq!(of(&all[1], &all), "10.2.0.0/24 10.9.0.0/16 0.0.0.0/0");
        all[1].is_static = true;
        assert_eq!(of(&all[1], &all), "10.2.0.0/24 10.9.0.0/16");
    }

    #[test]
    fn del_removes_what_nobody_else_has() {
        let address =
            |link: u32, ip: &str| (link, Address { network: ip.parse().unwrap(), flags: 0, scope: 0 });
        let addresses = [address(7, "10.1.0.2/24"), address(8, "10.2.0.2/24"), address(8, "10.3.0.2/24")];
        let rule = |ip: &str, protocol| Rule::from(ip.parse().unwrap(), 100, protocol);
        let former = ["10.2.0.2", "10.4.0.2"].map(|ip| ip.parse().unwrap());
        let removed = |link, rule: Rule| {
            let stale = stale(vec![rule], &addresses, link, &former);
            (stale.rules == [rule], stale.has_tables(), stale.links.into_iter().collect::<Vec<_>>())
        };
        let kept = |links: &[u32]| (false, false, links.to_vec());
        // Of the interface, by whomever.
        assert_eq!(removed(Some(7), rule("10.1.0.2", 0)), (true, false, vec![7]));
        assert_eq!(removed(None, rule("10.1.0.2", OURS)), kept(&[]));
        // Of another interface: ours, and of this attachment.
        assert_eq!(removed(Some(7), rule("10.2.0.2", OURS)), (true, true, vec![7, 8]));
        assert_eq!(removed(Some(7), rule("10.2.0.2", 0)), kept(&[7]));
        assert_eq!(removed(Some(7), rule("10.3.0.2", OURS)), kept(&[7]));
        // Of none.
        assert_eq!(removed(None, rule("10.4.0.2", 0)), (true, false, vec![]));
        assert_eq!(removed(None, rule("10.5.0.2", OURS_FIXED)), (true, false, vec![]));
        assert_eq!(removed(None, rule("10.5.0.2", 0)), kept(&[]));
        let main = Rule { table: MAIN_TABLE, ..rule("10.1.0.2", OURS) };
        assert_eq!(removed(Some(7), main), (true, false, vec![7]));
    }
}

//! Finds how this node reaches an address in the list of its routes, without a request to the kernel for each of 5,000 nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

use super::local::{Local, Route};

/// The main table without our routes, by destination.
pub struct Lookup<'a> {
    routes: BTreeMap<IpNetwork, &'a Route>,
    /// The prefix lengths of each family, the longest last.
    prefixes: [BTreeSet<u8>; 2],
}

/// How an address is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is on the link with this index.
    OnLink(u32),
    /// It is behind a gateway.
    Routed,
    /// No route leads there.
    Nowhere,
}

impl<'a> Lookup<'a> {
    /// Sorts the routes. Of several to one destination the lowest metric wins.
    pub fn new(local: &'a Local) -> Self {
        let mut lookup = Lookup { routes: BTreeMap::new(), prefixes: Default::default() };
        for route in local.routes.iter().filter(|route| !route.is_ours()) {
            lookup.prefixes[IpFamily::of(route.dst.ip()) as usize].insert(route.dst.prefix());
            // The set is sorted by metric.
            lookup.routes.entry(route.dst).or_insert(route);
        }
        lookup
    }

    pub fn reach(&self, address: IpAddr) -> Reach {
        match self.route(address) {
            Some(route) if !route.is_unicast => Reach::Nowhere,
            Some(Route { gws, links, .. }) => match links.as_slice() {
                [link] if gws.is_empty() => Reach::OnLink(*link),
                _ => Reach::Routed,
            },
            None => Reach::Nowhere,
        }
    }

    /// The network on a link in which no host can have this address: it is the network's first or its broadcast address.
    pub fn edge_of(&self, address: IpAddr) -> Option<IpNetwork> {
        let route = self.route(address).filter(|route| route.is_unicast && route.gws.is_empty())?;
        let is_edge = address == route.dst.network() || address == route.dst.broadcast();
        (address.is_ipv4() && route.dst.prefix() < 31 && is_edge).then_some(route.dst)
    }

    /// The first link of the default route: of IPv4, else of IPv6.
    pub fn default_link(&self) -> Option<u32> {
        let mut routes = self.routes.iter().filter(|(dst, route)| dst.prefix() == 0 && route.is_unicast);
        routes.next().and_then(|(_, route)| route.links.first().copied())
    }

    /// The routes of other programs, by destination.
    pub fn routes(&self) -> &BTreeMap<IpNetwork, &'a Route> {
        &self.routes
    }

    fn route(&self, address: IpAddr) -> Option<&'a Route> {
        let prefixes = self.prefixes[IpFamily::of(address) as usize].iter().rev();
        prefixes.into_iter().find_map(|prefix| {
            let around = IpNetwork::new(address, *prefix).ok()?;
            self.routes.get(&IpNetwork::new(around.network(), *prefix).ok()?).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::PROTOCOL;

    fn route(dst: &str, priority: u32, gws: &[&str], links: &[u32]) -> Route {
        let gws = gws.iter().map(|gw| gw.parse().unwrap()).collect();
        let dst = dst.parse().unwrap();
        Route {
            dst,
            priority,
            protocol: 2,
            gws,
            links: links.to_vec(),
            is_unicast: !links.is_empty(),
            is_tuned: false,
        }
    }

    #[test]
    fn the_longest_prefix_and_the_lowest_metric_decide() {
        let mut local = Local::default();
        local.routes.extend([
            route("0.0.0.0/0", 0, &["192.0.2.1"], &[2]),
            route("192.0.2.0/24", 100, &[], &[2]),
            route("192.0.2.0/24", 50, &[], &[3]),
            route("192.0.2.128/25", 0, &["192.0.2.1"], &[2]),
            route("192.0.2.66/32", 0, &[], &[]),
            route("198.51.100.0/24", 0, &[], &[2, 3]),
            route("2001:db8::/64", 256, &[], &[4]),
            Route { protocol: PROTOCOL, ..route("192.0.2.5/32", 0, &["192.0.2.1"], &[2]) },
        ]);
        let lookup = Lookup::new(&local);
        for (address, reach) in [
            ("192.0.2.5", Reach::OnLink(3)),
            ("192.0.2.200", Reach::Routed),
            ("192.0.2.66", Reach::Nowhere),
            ("198.51.100.1", Reach::Routed),
            ("203.0.113.1", Reach::Routed),
            ("2001:db8::5", Reach::OnLink(4)),
            ("2001:db9::5", Reach::Nowhere),
        ] {
            assert_eq!(lookup.reach(address.parse().unwrap()), reach, "{address}");
        }
        assert_eq!(lookup.default_link(), Some(2));
        for (address, edge) in [
            ("192.0.2.0", Some("192.0.2.0/24")),
            ("192.0.2.255", None),
            ("192.0.2.66", None),
            ("203.0.113.255", None),
            ("2001:db8::", None),
        ] {
            let edge = edge.map(|text| text.parse().unwrap());
            assert_eq!(lookup.edge_of(address.parse().unwrap()), edge, "{address}");
        }
        // BGP unnumbered: the kernel describes the default route with an IPv6 next hop, alone, or one of several.
        for gws in [&["fe80::1"][..], &["fe80::1", "fe80::2"]] {
            let mut local = Local::default();
            local.routes.extend([
                route("0.0.0.0/0", 0, gws, &[2, 3][..gws.len()]),
                route("192.0.2.1/32", 0, &[], &[1]),
            ]);
            assert_eq!(Lookup::new(&local).reach("192.0.2.2".parse().unwrap()), Reach::Routed);
        }
    }
}

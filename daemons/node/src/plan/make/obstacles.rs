//! What this node has in the way of a podCIDR.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ferrule_kit::origin::of_protocol;
use ipnetwork::IpNetwork;

use super::Facts;
use crate::cluster::{inside, single};
use crate::kernel::{BRIDGE, Lookup, Route, metric};
use crate::names::OVERLAYS;

/// Why this node cannot route the podCIDR of another node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The route would cut this node off from the API server or from a gateway.
    Cuts(String),
    /// An address or a route of another program.
    Foreign(String),
    /// Pods of this node, from when the podCIDR was its own.
    Pods(String),
}

/// This node's addresses and gateways, and whose links they are on.
pub(super) struct Things<'a> {
    facts: &'a Facts<'a>,
    pub(super) lookup: Lookup<'a>,
    /// The addresses, each with its link, except those of our overlays.
    pub(super) addresses: BTreeMap<IpNetwork, u32>,
    /// The gateways outside of pods' networks, each with the destination of its route.
    gateways: BTreeMap<IpNetwork, IpNetwork>,
    /// The conflist's bridge; with ptp that of an earlier conflist.
    pub(super) bridge: Option<u32>,
    /// Our overlays, and the host's ends of pods' links: veths whose routes lead to one address each.
    inner: BTreeSet<u32>,
}

impl<'a> Things<'a> {
    pub(super) fn new(facts: &'a Facts<'a>) -> Self {
        let local = facts.local;
        let lookup = Lookup::new(local);
        let named = |index: &u32, names: &[&str]| {
            local.links.get(index).is_some_and(|link| names.contains(&link.name.as_str()))
        };
        let foreign = local.addresses.iter().filter(|(link, _)| !named(link, &OVERLAYS));
        let addresses = foreign.map(|(link, address)| (single(*address), *link)).collect();
        let name = facts.bridge.unwrap_or(BRIDGE);
        let bridges = local.links.iter().filter(|(_, link)| link.is_bridge && link.name == name);
        let bridge = bridges.map(|(index, _)| *index).next();
        let is_wide = |route: &&Route| route.dst.prefix() < IpFamily::of(route.dst.ip()).bits();
        let wide: BTreeSet<u32> =
            local.routes.iter().filter(is_wide).flat_map(|route| &route.links).copied().collect();
        let inner: BTreeSet<u32> = local
            .links
            .iter()
            .filter(|(index, link)| named(index, &OVERLAYS) || (link.is_veth && !wide.contains(index)))
            .map(|(index, _)| *index)
            .collect();
        let is_of_pods = |link: &u32| bridge == Some(*link) || inner.contains(link);
        let mut gateways = BTreeMap::new();
        for (dst, route) in lookup.routes() {
            if route.is_unicast && !route.links.iter().any(is_of_pods) {
                gateways.extend(route.gws.iter().map(|gw| (single(*gw), *dst)));
            }
        }
        Things { facts, lookup, addresses, gateways, bridge, inner }
    }

    pub(super) fn is_inner(&self, link: u32) -> bool {
        self.inner.contains(&link)
    }

    /// Whether the route leads to pods of this node.
    fn is_of_this_node(&self, route: &Route) -> bool {
        let is_of_pods = |link: &u32| self.bridge == Some(*link) || self.is_inner(*link);
        !route.links.is_empty() && route.links.iter().all(is_of_pods)
    }
}

impl Things<'_> {
    /// Why nobody may have this podCIDR, as this node sees it: without the address this node would lose its network, and
    /// would never hear of a correction.
    pub(super) fn cuts(&self, network: IpNetwork) -> Option<String> {
        if let Some(server) = self.facts.servers.iter().find(|server| network.contains(**server)) {
            return Some(format!("it holds the address {server} of the API server"));
        }
        // The gateway of a route into the podCIDR itself, such as one of another network plugin, matters to nobody else.
        let mut gateways = inside(&self.gateways, network).filter(|(_, dst)| !within(network, **dst));
        let (gateway, dst) = gateways.next()?;
        Some(format!("it holds {}, the gateway of this node's route to {dst}", gateway.ip()))
    }

    /// What is in the way of a route to another node's podCIDR. Adds the addresses to `stale` that this node has kept from when
    /// the podCIDR was its own.
    pub(super) fn obstacle(
        &self,
        network: IpNetwork,
        stale: &mut BTreeSet<(u32, IpAddr)>,
    ) -> Option<Obstacle> {
        if let Some(why) = self.cuts(network) {
            return Some(Obstacle::Cuts(why));
        }
        let (things, local) = (self, self.facts.local);
        let on_bridge: Vec<IpAddr> = inside(&things.addresses, network)
            .filter(|(_, link)| things.bridge == Some(**link))
            .map(|(address, _)| address.ip())
            .collect();
        let was_own = |ip: &IpAddr| self.facts.former.keys().any(|former| former.contains(*ip));
        let is_left_over = !on_bridge.is_empty() && on_bridge.iter().all(was_own);
        if let (Some(bridge), true) = (things.bridge, is_left_over) {
            if let Some(why) = self.pods_on(bridge, network) {
                return Some(Obstacle::Pods(why));
            }
            stale.extend(on_bridge.iter().map(|address| (bridge, *address)));
        }
        if self.facts.held.contains(&network) || local.ours(network).next().is_some() {
            return None;
        }
        let goes = |link: u32| (is_left_over && things.bridge == Some(link)) || things.is_inner(link);
        if let Some((address, link)) = inside(&things.addresses, network).find(|(_, link)| !goes(**link)) {
            let name = local.links.get(link).map_or("?", |link| link.name.as_str());
            return Some(Obstacle::Foreign(format!(
                "it holds the address {} of {name} on this node",
                address.ip()
            )));
        }
        let mut routes = inside(self.lookup.routes(), network)
            .filter(|(_, route)| route.links.is_empty() || !route.links.iter().all(|link| goes(*link)));
        let (_, route) = routes.next()?;
        Some(Obstacle::Foreign(format!("it holds a route of this node: {}", self.shown(route))))
    }

    /// Why the bridge must keep its address in a former podCIDR of this node: pods have it as their gateway.
    fn pods_on(&self, bridge: u32, network: IpNetwork) -> Option<String> {
        let (local, former) = (self.facts.local, self.facts.former);
        let name = local.links.get(&bridge).map_or("?", |link| link.name.as_str());
        if !local.links.values().any(|link| link.master == Some(bridge)) {
            return None;
        }
        let around =
            former.iter().filter(|(former, _)| within(**former, network) || within(network, **former));
        for (_, pods) in around {
            let Some(pods) = pods else {
                return Some(format!(
                    "{name} of this node has pods, and the daemon does not see their addresses"
                ));
            };
            if let Some(pod) = pods.iter().find(|pod| network.contains(**pod)) {
                return Some(format!(
                    "pods on {name} of this node still have addresses in it, such as {pod}"
                ));
            }
        }
        None
    }

    /// The route of another program that comes before ours to this podCIDR.
    pub(super) fn first_route(&self, network: IpNetwork) -> Option<String> {
        let ours = metric(network);
        let comes_first = |route: &Route| route.dst != network || route.priority < ours;
        let mut routes = inside(self.lookup.routes(), network)
            .filter(|(_, route)| comes_first(route) && !self.is_of_this_node(route));
        routes.next().map(|(_, route)| self.shown(route))
    }

    /// The route, and how to remove it.
    pub(super) fn shown(&self, route: &Route) -> String {
        let links = route.links.iter().filter_map(|link| self.facts.local.links.get(link));
        let mut way: String = route.gws.first().map_or_else(String::new, |gw| format!(" via {gw}"));
        way.extend(links.take(1).map(|link| format!(" dev {}", link.name)));
        if !route.is_unicast {
            way = " that leads nowhere".to_owned();
        }
        let (dst, protocol) = (route.dst, route.protocol);
        let metric = if route.priority == 0 { String::new() } else { format!(" metric {}", route.priority) };
        let by_link = || self.facts.local.links.get(route.links.first()?)?.origin;
        let remedy = match of_protocol(protocol).or_else(by_link) {
            Some(origin) => origin.cleanup(),
            None => format!("ip route del {dst}{metric}"),
        };
        format!("{dst}{way} (protocol {protocol}); {remedy} removes it")
    }
}

/// Whether `inner` lies in `outer`.
pub(super) fn within(outer: IpNetwork, inner: IpNetwork) -> bool {
    outer.contains(inner.ip()) && outer.prefix() <= inner.prefix()
}

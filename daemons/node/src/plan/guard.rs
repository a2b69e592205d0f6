//! What is guarded. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

use super::{Guard, GuardedVxlan, Vxlan};
use crate::arguments::{Mode, Options};
use crate::cluster::{Claims, Peer, Peers, single};
use crate::kernel::Local;
use crate::table::disjoint;

/// What the guard is made from.
pub(super) struct Scene<'a> {
    pub(super) options: &'a Options,
    /// This node's name.
    pub(super) name: &'a str,
    pub(super) peers: &'a Peers,
    pub(super) local: &'a Local,
    pub(super) claims: &'a Claims<'a>,
    /// This node's podCIDRs, also those that it had before.
    pub(super) pods: &'a [IpNetwork],
    pub(super) device: Option<&'a Vxlan>,
}

/// `None` if nothing is to be guarded.
pub(super) fn guard(scene: &Scene<'_>) -> Option<Guard> {
    let Scene { options, name, peers, local, pods, device, .. } = *scene;
    let sources = options.guards_sources();
    // Another pair of nodes may have VXLAN where this node needs none.
    let has_vxlan = matches!(options.mode, Mode::Auto | Mode::Vxlan);
    let vxlan = has_vxlan.then(|| GuardedVxlan {
        port: options.vxlan_port,
        nodes: peers.values().flat_map(addresses).collect(),
        device: device.map(|device| (device.id, device.local)),
        owned: device.map(|device| owned(scene, IpFamily::of(device.local))).unwrap_or_default(),
    });
    (sources || has_vxlan).then(|| Guard {
        sources,
        allow: options.source_guard_allow.clone(),
        uplinks: uplinks(local, peers.get(name), pods),
        vxlan,
    })
}

fn addresses(peer: &Peer) -> impl Iterator<Item = IpAddr> + '_ {
    IpFamily::ALL.into_iter().filter_map(|family| peer.address(family))
}

/// All other nodes, also those with a route: the other end may have chosen VXLAN.
fn owned(scene: &Scene<'_>, outer: IpFamily) -> BTreeSet<(IpAddr, IpNetwork)> {
    let claims = scene.claims;
    let mut owned = BTreeSet::new();
    for (name, networks) in claims.networks.iter().filter(|(name, _)| **name != scene.name) {
        let Some(peer) = scene.peers.get(*name) else { continue };
        let Ok(source) = claims.address(name, peer, outer) else { continue };
        // A node answers with its InternalIP where pods ask for it with their own addresses. One in a podCIDR is a pod's.
        let own = IpFamily::ALL
            .into_iter()
            .filter_map(|family| claims.address(name, peer, family).ok())
            .map(single);
        let all = networks.iter().chain(&scene.options.source_guard_allow).copied().chain(own);
        owned.extend(disjoint(all).into_iter().map(|network| (source, network)));
    }
    owned
}

/// The links that are no pod's: they have this node's address, or a route that leads further than to one address of a pod.
fn uplinks(local: &Local, me: Option<&Peer>, pods: &[IpNetwork]) -> BTreeSet<String> {
    let is_of_pods = |dst: IpNetwork| {
        let within = |pods: &IpNetwork| pods.prefix() <= dst.prefix() && pods.contains(dst.ip());
        dst == single(dst.ip()) || pods.iter().any(within)
    };
    let routed = local
        .routes
        .iter()
        // Ours come and go with other nodes, on links that have other routes besides.
        .filter(|route| {
            route.is_unicast && !route.is_ours() && (!route.gws.is_empty() || !is_of_pods(route.dst))
        })
        .flat_map(|route| route.links.iter().copied());
    let addressed = me.into_iter().flat_map(addresses).filter_map(|address| local.link_of(address));
    let links = routed.chain(addressed).filter_map(|link| local.links.get(&link));
    links.map(|link| link.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Link, PROTOCOL, Route};

    #[test]
    fn links_with_further_routes_or_the_nodes_address_are_no_pods() {
        let mut local = Local::default();
        let names = ["eth0", "unnumbered", "pod", "old-pod", "ferrule0", "docker0", "lo", "to-one", "ours"];
        for (index, name) in (1..).zip(names) {
            let link = Link {
                name: name.into(),
                mtu: 1500,
                is_up: true,
                is_loopback: name == "lo",
                ..Link::default()
            };
            local.links.insert(index, link);
        }
        local.addresses.insert((1, "192.0.2.1".parse().unwrap()));
        local.addresses.insert((3, "10.244.1.1".parse().unwrap()));
        let mut route = |dst: &str, gw: Option<&str>, link, is_unicast| {
            let protocol = if link == 9 { PROTOCOL } else { 2 };
            let gws = gw.map(|gw| gw.parse().unwrap()).into_iter().collect();
            let dst = dst.parse().unwrap();
            local.routes.insert(Route {
                dst,
                priority: 0,
                protocol,
                gws,
                links: vec![link],
                is_unicast,
                is_tuned: false,
            });
        };
        route("0.0.0.0/0", Some("169.254.1.1"), 2, true);
        route("10.244.1.7/32", None, 3, true);
        route("fd00:244:1::7/128", None, 3, true);
        // Of a former podCIDR.
        route("10.244.9.7/32", None, 4, true);
        route("10.244.1.0/24", None, 5, true);
        route("172.17.0.0/16", None, 6, true);
        route("10.0.0.0/8", None, 7, false);
        route("10.244.2.0/24", Some("10.244.2.0"), 9, true);
        route("203.0.113.9/32", Some("192.0.2.2"), 8, true);
        let me = Peer { addresses: ["192.0.2.1".parse().ok(), None], ..Peer::default() };
        let own = ["10.244.1.0/24".parse().unwrap(), "fd00:244:1::/64".parse().unwrap()];
        let expected = ["docker0", "eth0", "to-one", "unnumbered"].map(str::to_owned);
        assert_eq!(uplinks(&local, Some(&me), &own), BTreeSet::from(expected));
    }
}

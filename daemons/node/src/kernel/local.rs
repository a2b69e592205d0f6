//! What the kernel has: links, addresses, and the routes of the main table.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{Error, Socket, addr, link};
use ferrule_kernel::sysctl;
use ferrule_kit::origin::{Origin, of_device};
use ipnetwork::IpNetwork;

use super::PROTOCOL;

/// This node, as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// The links by index.
    pub links: BTreeMap<u32, Link>,
    /// The addresses, each with the index of its link, except those of IPv6 that are link-local.
    pub addresses: BTreeSet<(u32, IpAddr)>,
    /// The routes of the main table, except those to link-local and multicast networks of IPv6: each pod's link has them.
    pub routes: BTreeSet<Route>,
    /// Why no link can have IPv6.
    pub no_ipv6: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub mtu: u32,
    /// The index of its master, such as a bridge that has it as a port.
    pub master: Option<u32>,
    /// Whether it is up. Whether it has a carrier does not matter: its routes stay.
    pub is_up: bool,
    /// Whether it is `lo`.
    pub is_loopback: bool,
    pub is_bridge: bool,
    pub is_veth: bool,
    /// It is a VPN's, a tunnel or PPP: it carries packets of the addresses that its other end knows, and drops those of pods.
    pub is_tunnel: bool,
    /// The other network that alone makes such a link.
    pub origin: Option<&'static Origin>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The destination; prefix 0 for the default route.
    pub dst: IpNetwork,
    /// The metric: the lowest wins.
    pub priority: u32,
    /// The program that made it.
    pub protocol: u8,
    /// The next hops; empty for a network on the link.
    pub gws: Vec<IpAddr>,
    /// The links, one for each next hop.
    pub links: Vec<u32>,
    /// Whether it leads somewhere: neither `blackhole` nor another special type.
    pub is_unicast: bool,
    /// Whether it chooses the source address, the MTU or the like. Ours do not.
    pub is_tuned: bool,
}

impl From<link::Link> for Link {
    fn from(link: link::Link) -> Link {
        let is_loopback = link.flags & link::IFF_LOOPBACK != 0;
        Link {
            origin: of_device(&link),
            mtu: link.mtu,
            is_up: link.is_up(),
            is_loopback,
            is_bridge: link.kind == "bridge",
            is_veth: link.kind == "veth",
            is_tunnel: !is_loopback && !link.has_link_layer(),
            master: link.master,
            name: link.name,
        }
    }
}

impl Route {
    /// Parses the kernel's description. `None` for a route that [`Local::routes`] leaves out.
    pub(super) fn parse(description: &[u8]) -> Option<Route> {
        let matters = |route: &StoredRoute| route.table == MAIN_TABLE && !is_link_local(route.dst.ip());
        let route = StoredRoute::parse(description).filter(matters)?;
        let is_tuned = route.src.is_some() || route.has_metrics;
        let StoredRoute { dst, priority, protocol, gws, links, is_unicast, .. } = route;
        Some(Route { dst, priority, protocol, gws, links, is_unicast, is_tuned })
    }

    /// The route to this destination that sorts before all others.
    fn least(dst: IpNetwork) -> Route {
        let (gws, links) = (Vec::new(), Vec::new());
        Route { dst, priority: 0, protocol: 0, gws, links, is_unicast: false, is_tuned: false }
    }

    /// Whether this program made it.
    pub fn is_ours(&self) -> bool {
        self.protocol == PROTOCOL
    }
}

/// fe80::/10 and ff00::/8
pub fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local() || ip.is_multicast())
}

impl Local {
    /// Asks the kernel for everything.
    ///
    /// # Errors
    /// The kernel refuses a list, or it changed in each of five attempts.
    pub fn read(socket: &mut Socket) -> Result<Local, Error> {
        let mut local = Local::default();
        for link in socket.links(None)? {
            local.links.insert(link.index, link.into());
        }
        for (link, address) in addr::read_all(socket.request(addr::list(0)))? {
            local.addresses.insert((link, address.network.ip()));
        }
        local.addresses.retain(|(_, address)| !is_link_local(*address));
        local.read_routes(socket)?;
        Ok(local)
    }

    /// As [`Local::read`], for the routes alone.
    pub fn read_routes(&mut self, socket: &mut Socket) -> Result<(), Error> {
        self.routes.clear();
        for family in IpFamily::ALL {
            for route in socket.routes(family, MAIN_TABLE)? {
                self.routes.extend(Route::parse(&route.into_description()));
            }
        }
        Ok(())
    }

    /// The link that has an address.
    pub fn link_of(&self, address: IpAddr) -> Option<u32> {
        self.addresses.iter().find(|(_, other)| *other == address).map(|(link, _)| *link)
    }

    /// Our route to a destination.
    pub fn ours(&self, dst: IpNetwork) -> impl Iterator<Item = &Route> {
        self.to(dst).filter(|route| route.is_ours())
    }

    /// All routes to exactly this destination.
    pub fn to(&self, dst: IpNetwork) -> impl Iterator<Item = &Route> {
        self.routes.range(Route::least(dst)..).take_while(move |route| route.dst == dst)
    }
}

/// Why no link can have IPv6.
pub(super) fn no_ipv6() -> Option<String> {
    let is_off =
        |of: &str| sysctl::read(&format!("net/ipv6/conf/{of}/disable_ipv6")).map(|value| value != "0");
    match [is_off("all"), is_off("default")] {
        [Err(error), _] if error.kind() == ErrorKind::NotFound => {
            Some("the kernel of this node has no IPv6: start it without ipv6.disable=1".to_owned())
        }
        [Ok(true), _] => Some(off("all")),
        [_, Ok(true)] => Some(off("default")),
        _ => None,
    }
}

fn off(of: &str) -> String {
    format!("IPv6 is off on this node: sysctl -w net.ipv6.conf.{of}.disable_ipv6=0 turns it on")
}

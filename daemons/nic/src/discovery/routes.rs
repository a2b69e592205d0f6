//! The links that carry routes of the node, and when that may have changed.
//!
//! A node may have thousands of routes, and a routing daemon may change them all the time. So a message only says that it is time for a
//! new list, and lists keep a distance to each other.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use tokio::time::{Instant, sleep_until};

use super::dump::{dump, dump_next_hops};

/// `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`.
const GROUPS: [u32; 2] = [7, 11];
/// `RTNLGRP_NEXTHOP`, since Linux 5.3.
const NEXT_HOPS: u32 = 32;
/// The shortest and the longest time between two lists, and how many times longer than a list it is.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);
const SHARE: u32 = 20;
/// The most messages that one list stands for.
const MOST: usize = 10_000;

/// A route of each link that carries one, by the link's index.
pub(super) type Carried = BTreeMap<u32, String>;

/// A subscription. Ends with this value.
pub(super) struct Routes {
    socket: TokioSocket,
    may_have_changed: bool,
    last: Carried,
    next: Instant,
}

impl Routes {
    /// Subscribes. Needs a tokio runtime.
    pub(super) fn open() -> io::Result<Routes> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.socket_ref().add_membership(group)?;
        }
        let _ = socket.socket_ref().add_membership(NEXT_HOPS);
        Ok(Routes { socket, may_have_changed: true, last: Carried::new(), next: Instant::now() })
    }

    /// The kernel removes the routes of a link that goes down without a message.
    pub(super) fn link_has_changed(&mut self) {
        self.may_have_changed = true;
    }

    /// The next list that differs from the one before.
    pub(super) async fn next(&mut self) -> Carried {
        loop {
            if !self.may_have_changed {
                // An error means lost messages.
                let _ = self.socket.recv_from_full().await;
                self.may_have_changed = true;
            }
            sleep_until(self.next).await;
            for _ in 0..MOST {
                if self.socket.recv_from_full().now_or_never().is_none() {
                    break;
                }
            }
            let began = Instant::now();
            let listed = list();
            self.next = Instant::now() + (began.elapsed() * SHARE).clamp(PAUSE, LONGEST);
            // The next attempt comes after the pause.
            let Ok(listed) = listed else { continue };
            self.may_have_changed = false;
            if listed != self.last {
                self.last.clone_from(&listed);
                return listed;
            }
        }
    }
}

/// A route of each link that carries one of the node, in any table. A next hop object counts too: routes may use it.
pub(super) fn list() -> io::Result<Carried> {
    let mut carried = Carried::new();
    let mut add = |link, text: &str| {
        let former = carried.entry(link).or_insert_with(|| text.to_owned());
        if *text < **former {
            text.clone_into(former);
        }
    };
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        let listed = dump(RouteNetlinkMessage::GetRoute(request), |message| {
            let RouteNetlinkMessage::NewRoute(route) = message else { return };
            if let Some((text, links)) = of_node(route) {
                links.for_each(|link| add(link, &text));
            }
        });
        unless_unknown(listed)?;
    }
    unless_unknown(dump_next_hops(|link| add(link, "a next hop object")))?;
    Ok(carried)
}

/// A kernel without IPv6, or without next hop objects.
fn unless_unknown(listed: io::Result<()>) -> io::Result<()> {
    match listed.as_ref().map_err(|error| error.raw_os_error().map(Errno::from_raw)) {
        Err(Some(Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT)) => Ok(()),
        _ => listed,
    }
}

/// The destination and the links of a route that the node uses. `None` for those that the kernel makes for each link that is up: to its
/// own and to link-local addresses, and for multicast.
fn of_node(route: &RouteMessage) -> Option<(String, impl Iterator<Item = u32> + use<'_>)> {
    let header = &route.header;
    if header.kind != RouteType::Unicast || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let to = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(to)) => Some(IpAddr::from(*to)),
        RouteAttribute::Destination(RouteAddress::Inet6(to)) => Some(IpAddr::from(*to)),
        _ => None,
    });
    let is_local = match to {
        Some(IpAddr::V4(to)) => to.is_link_local() || to.is_multicast(),
        Some(IpAddr::V6(to)) => to.is_unicast_link_local() || to.is_multicast(),
        None => false,
    };
    if is_local && header.protocol == RouteProtocol::Kernel {
        return None;
    }
    let text = match to {
        Some(to) => format!("the route to {to}/{}", header.destination_prefix_length),
        None if header.address_family == AddressFamily::Inet6 => "the default route of IPv6".to_owned(),
        None => "the default route of IPv4".to_owned(),
    };
    let links = route.attributes.iter().flat_map(|attribute| match attribute {
        RouteAttribute::Oif(link) => vec![*link],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    });
    Some((text, links))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_the_node() {
        let route = |to: &str, kind, protocol| {
            let mut route = RouteMessage::default();
            (route.header.kind, route.header.protocol) = (kind, protocol);
            route.header.destination_prefix_length = 8;
            if let Ok(to) = to.parse::<IpAddr>() {
                route.attributes.push(RouteAttribute::Destination(to.into()));
            }
            route.attributes.push(RouteAttribute::Oif(7));
            of_node(&route).map(|(text, links)| (text, links.collect::<Vec<_>>()))
        };
        use {RouteProtocol as By, RouteType as Is};
        for (to, kind, protocol, expected) in [
            ("", Is::Unicast, By::Bgp, Some("the default route of IPv4")),
            ("10.0.0.0", Is::Unicast, By::Kernel, Some("the route to 10.0.0.0/8")),
            ("fe80::", Is::Unicast, By::Static, Some("the route to fe80::/8")),
            ("fe80::", Is::Unicast, By::Kernel, None),
            ("169.254.0.0", Is::Unicast, By::Kernel, None),
            ("ff00::", Is::Multicast, By::Kernel, None),
            ("10.0.0.1", Is::Local, By::Kernel, None),
        ] {
            let expected = expected.map(|text| (text.to_owned(), vec![7]));
            assert_eq!(route(to, kind, protocol), expected, "{to}");
        }
    }
}

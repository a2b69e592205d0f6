//! Routes as the kernel lists them, with all their attributes, so that they can be moved to another table, or added again
//! that a link has lost.
//!
//! # References
//! linux/rtnetlink.h; rtnetlink(7).

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::libc::{
    RTA_CACHEINFO, RTA_DST, RTA_GATEWAY, RTA_METRICS, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY,
    RTA_TABLE, RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE, RTN_UNICAST,
};

use super::error::Error;
use super::message::{F_APPEND, F_CREATE, F_DUMP, HEADER, Message, attrs, find_attr, u32_at};
use super::route::{self, RTA_VIA, RTMSG, RTNEXTHOP, RTNH_F_ONLINK, next_hops, unspecified};
use super::socket::{Answer, Socket, ignoring};
use crate::ip::{IpFamily, from_octets};

const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;
/// A next hop object (`ip nexthop`). The kernel also lists its next hops.
const RTA_NH_ID: u16 = 30;
/// What a next hop object contains. The kernel takes either these or the object.
const NEXT_HOP: [u16; 6] = [RTA_OIF, RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH, RTA_ENCAP_TYPE, RTA_ENCAP];
/// `RTM_F_CLONED`: an entry of the route cache.
const CLONED: u32 = 0x200;

/// `RTPROT_KERNEL`: the kernel made the route, for an address.
pub const BY_KERNEL: u8 = 2;
/// `RTPROT_RA`: a router advertisement made the route.
pub const BY_ROUTER: u8 = 9;
/// `RTPROT_REDIRECT`: an ICMP redirect made the route.
const BY_REDIRECT: u8 = 1;

/// A route in a routing table of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRoute {
    /// Its family.
    pub family: IpFamily,
    /// Destination.
    pub dst: IpNetwork,
    /// Its next hops: empty for a route to a connected network, several for a multipath route. That of an IPv4 route may be of IPv6.
    pub gws: Vec<IpAddr>,
    /// The indexes of its output links, one for each next hop.
    pub links: Vec<u32>,
    /// The preferred source address.
    pub src: Option<IpAddr>,
    /// Routing table.
    pub table: u32,
    /// Metric.
    pub priority: u32,
    /// Scope as in linux/rtnetlink.h: 0 global, 253 link, 254 host.
    pub scope: u8,
    /// The program that made the route, `RTPROT_*`.
    pub protocol: u8,
    /// Whether it leads somewhere: neither `local`, `blackhole` nor another special type.
    pub is_unicast: bool,
    /// Whether it sets an MTU or another metric.
    pub has_metrics: bool,
    has_object: bool,
    description: Vec<u8>,
}

impl StoredRoute {
    /// The route in the kernel's description. `None` if it is not one of a route.
    pub fn parse(description: &[u8]) -> Option<StoredRoute> {
        let header: &[u8; RTMSG] = description.first_chunk()?;
        let family = IpFamily::ALL.into_iter().find(|family| family.number() == header[0])?;
        let mut route = StoredRoute {
            family,
            dst: IpNetwork::new(unspecified(family), header[1]).ok()?,
            gws: Vec::new(),
            links: Vec::new(),
            src: None,
            table: u32::from(header[4]),
            priority: 0,
            scope: header[6],
            protocol: header[5],
            is_unicast: header[7] == RTN_UNICAST,
            has_metrics: false,
            has_object: false,
            description: description.to_vec(),
        };
        for (kind, value) in attrs(&description[RTMSG..]) {
            match kind {
                RTA_DST => route.dst = IpNetwork::new(from_octets(value)?, header[1]).ok()?,
                RTA_GATEWAY => route.gws.extend(from_octets(value)),
                RTA_VIA => route.gws.extend(route::via(value)),
                RTA_OIF => route.links.push(u32_at(value, 0)),
                RTA_PRIORITY => route.priority = u32_at(value, 0),
                RTA_PREFSRC => route.src = from_octets(value),
                RTA_TABLE => route.table = u32_at(value, 0),
                RTA_METRICS => route.has_metrics = true,
                RTA_NH_ID => route.has_object = true,
                RTA_MULTIPATH => {
                    let gateway = |hop: &[u8]| {
                        let of = |kind| find_attr(&hop[RTNEXTHOP..], kind);
                        of(RTA_GATEWAY).and_then(from_octets).or_else(|| route::via(of(RTA_VIA)?))
                    };
                    route.gws.extend(next_hops(value).filter_map(gateway));
                    route.links.extend(next_hops(value).map(|hop| u32_at(hop, 4)));
                }
                _ => {}
            }
        }
        Some(route)
    }

    /// The body of the kernel's message, which [`StoredRoute::parse`] reads.
    pub fn into_description(self) -> Vec<u8> {
        self.description
    }

    /// The part of this route that leads only through the link: the route itself, or those next hops of an IPv6 multipath
    /// route. Each of these is a route of its own. The kernel lists such routes as one if they have the same destination
    /// and metric, also if different programs made them.
    pub fn of_link(&self, link: u32) -> Option<StoredRoute> {
        if !self.links.is_empty() && self.links.iter().all(|index| *index == link) {
            return Some(self.clone());
        }
        if self.family == IpFamily::V6 && !self.has_object { self.through(link) } else { None }
    }

    /// A route with those next hops of this one that lead through the link, by their content if they are objects. `None` if
    /// there is none.
    pub fn through(&self, link: u32) -> Option<StoredRoute> {
        if !self.links.contains(&link) {
            return None;
        }
        // The kernel names the source address of the first next hop alone.
        let is_part = self.family == IpFamily::V6 && self.links.iter().any(|index| *index != link);
        let (header, attributes) = self.description.split_at(RTMSG);
        let is_kept = |kind| kind != RTA_NH_ID && !(is_part && kind == RTA_PREFSRC);
        let kept = attrs(attributes).filter(|(kind, _)| is_kept(*kind));
        let part = kept.fold(Message::new(RTM_NEWROUTE, 0, header), |part, (kind, value)| {
            if kind != RTA_MULTIPATH {
                return part.attr(kind, value);
            }
            let own: Vec<_> = next_hops(value).filter(|hop| u32_at(hop, 4) == link).collect();
            part.attr(kind, &own.concat())
        });
        StoredRoute::parse(part.finish(0, 0).ok()?.get(HEADER..)?)
    }

    /// A request that adds this route to a table, behind others to the same destination. `EEXIST` if it is there.
    pub fn add_to(&self, table: u32) -> Message {
        self.request(RTM_NEWROUTE, F_CREATE | F_APPEND, table, None)
    }

    /// A request that adds this route to its table, with all next hops through this link. `EEXIST` if it is there.
    pub fn add_through(&self, link: u32) -> Message {
        self.request(RTM_NEWROUTE, F_CREATE | F_APPEND, self.table, Some(link))
    }

    /// A request that removes this route from a table; `ESRCH` if it is not there. Other next hops of an IPv6 multipath route
    /// stay.
    pub fn delete_from(&self, table: u32) -> Message {
        self.request(RTM_DELROUTE, 0, table, None)
    }

    fn request(&self, kind: u16, flags: u16, table: u32, link: Option<u32>) -> Message {
        let (header, attributes) = self.description.split_at(RTMSG);
        let mut header = header.to_vec();
        header[4] = u8::try_from(table).unwrap_or_default();
        if kind == RTM_DELROUTE && self.family == IpFamily::V6 {
            // The kernel names the program of the first next hop alone.
            header[5] = 0;
        }
        let by_object = self.has_object && link.is_none();
        // The kernel refuses the flags that describe the state of a next hop.
        let state = if by_object { 0 } else { u32_at(&header, 8) & RTNH_F_ONLINK };
        header[8..12].copy_from_slice(&state.to_ne_bytes());
        let message = Message::new(kind, flags, &header).attr_u32(RTA_TABLE, table);
        let kept = attrs(attributes).filter(|(kind, _)| match *kind {
            RTA_TABLE | RTA_CACHEINFO => false,
            RTA_NH_ID => by_object,
            kind => !by_object || !NEXT_HOP.contains(&kind),
        });
        kept.fold(message, |message, (kind, value)| match (kind, link.map(u32::to_ne_bytes)) {
            (RTA_OIF, Some(link)) => message.attr(kind, &link),
            (RTA_MULTIPATH, link) => {
                let moved = |hop: &[u8]| {
                    let mut hop = hop.to_vec();
                    hop.resize(hop.len().next_multiple_of(4), 0);
                    hop[2] &= RTNH_F_ONLINK.to_le_bytes()[0];
                    if let Some(link) = link {
                        hop[4..8].copy_from_slice(&link);
                    }
                    hop
                };
                message.attr(kind, &next_hops(value).flat_map(moved).collect::<Vec<_>>())
            }
            _ => message.attr(kind, value),
        })
    }
}

/// A request for the routes of one family in all tables: those with a next hop through this link, or all. Kernels before
/// 4.20 list all in any case.
pub fn list(family: IpFamily, link: Option<u32>) -> Message {
    let mut header = [0; RTMSG];
    header[0] = family.number();
    Message::new(RTM_GETROUTE, F_DUMP, &header).attr_if(RTA_OIF, link.map(u32::to_ne_bytes))
}

/// The routes in the answer to [`list`], without those of the route cache.
pub fn read(answer: Answer) -> Result<Vec<StoredRoute>, Error> {
    let is_stored = |body: &&Vec<u8>| u32_at(body, 8) & CLONED == 0;
    Ok(answer?.iter().filter(is_stored).filter_map(|body| StoredRoute::parse(body)).collect())
}

impl Socket {
    /// The routes of one family in one table. Meant for a container's namespace, which has few routes:
    /// kernels before 4.20 dump all routes of the family.
    pub fn routes(&mut self, family: IpFamily, table: u32) -> Result<Vec<StoredRoute>, Error> {
        // The kernel returns ENOENT if the table has never had a route.
        let mut routes = read(ignoring(self.request(route::list(family, table)), &[Errno::ENOENT]))?;
        routes.retain(|route| route.table == table);
        Ok(routes)
    }

    /// Calls `visit` with each route of one family in one table, or with those that have a next hop through this link. Keeps none.
    pub fn visit_routes(
        &mut self,
        family: IpFamily,
        table: u32,
        link: Option<u32>,
        visit: &mut dyn FnMut(&StoredRoute),
    ) -> Result<(), Error> {
        let list = route::list(family, table).attr_if(RTA_OIF, link.map(u32::to_ne_bytes));
        let mut found = |body: &[u8]| {
            let route = StoredRoute::parse(body).filter(|route| route.table == table);
            route.iter().filter(|_| u32_at(body, 8) & CLONED == 0).for_each(&mut *visit);
        };
        ignoring(self.visit(list, &mut found).map(|()| Vec::new()), &[Errno::ENOENT]).map(drop)
    }

    /// The routes of both families in all tables. Meant for a container's namespace, which has few routes.
    pub fn stored_routes(&mut self) -> Result<Vec<StoredRoute>, Error> {
        self.list_routes(None)
    }

    /// The unicast routes that lead through this link and nowhere else, except those that the kernel adds by itself. Those
    /// without a next hop come first, because others need them.
    pub fn routes_through(&mut self, link: u32) -> Result<Vec<StoredRoute>, Error> {
        let mut routes = self.list_routes(Some(link))?;
        let is_added = |route: &StoredRoute| {
            route.is_unicast && !matches!(route.protocol, BY_KERNEL | BY_ROUTER | BY_REDIRECT)
        };
        routes =
            routes.iter().filter(|route| is_added(route)).filter_map(|route| route.of_link(link)).collect();
        routes.sort_by_key(|route| !route.gws.is_empty());
        Ok(routes)
    }

    fn list_routes(&mut self, link: Option<u32>) -> Result<Vec<StoredRoute>, Error> {
        let mut routes = Vec::new();
        for family in IpFamily::ALL {
            let answer = self.request(list(family, link));
            // A kernel without IPv6.
            routes.extend(read(ignoring(answer, &[Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT]))?);
        }
        Ok(routes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::find_attr;

    /// From a kernel 6.18: `10.9.0.0/16 proto static nexthop via 192.0.2.1 dev 7 weight 1 linkdown nexthop via
    /// 192.0.2.2 dev 7 weight 2`.
    #[test]
    fn a_multipath_route_is_moved_with_its_next_hops() {
        let mut body = vec![2, 16, 0, 0, 254, 4, 0, 1, 16, 0, 0, 0];
        body.extend([8, 0, 15, 0, 254, 0, 0, 0, 8, 0, 1, 0, 10, 9, 0, 0]);
        body.extend([36, 0, 9, 0]);
        body.extend([16, 0, 16, 0, 7, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 1]);
        body.extend([16, 0, 0, 1, 7, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 2]);
        let route = StoredRoute::parse(&body).unwrap();
        let moved = route.add_to(1000).finish(1, 0).unwrap();
        let moved = StoredRoute::parse(&moved[16..]).unwrap();
        for (route, table) in [(&route, 254), (&moved, 1000)] {
            assert_eq!(route.gws, ["192.0.2.1", "192.0.2.2"].map(|gw| gw.parse::<IpAddr>().unwrap()));
            assert_eq!((route.links.as_slice(), route.table), ([7, 7].as_slice(), table));
            assert_eq!(
                (route.dst, route.protocol, route.is_unicast),
                ("10.9.0.0/16".parse().unwrap(), 4, true)
            );
        }
        // Without the flags of the state, with the weights.
        let hops = find_attr(&moved.description[RTMSG..], RTA_MULTIPATH).unwrap();
        assert_eq!((moved.description[8], &hops[..4]), (0, [16, 0, 0, 0].as_slice()));
        assert_eq!(hops[16..20], [16, 0, 0, 1]);
        let again = StoredRoute::parse(&route.add_through(9).finish(1, 0).unwrap()[16..]).unwrap();
        assert_eq!((again.links, again.table), (vec![9, 9], 254));
    }

    /// `198.51.100.0/24 via inet6 fe80::1 dev 7`, alone and as one of two next hops.
    #[test]
    fn an_ipv4_route_may_have_an_ipv6_next_hop() {
        let via = [[22, 0, 18, 0, 10, 0, 0xfe, 0x80].as_slice(), &[0; 13], &[1, 0, 0]].concat();
        let head = [2, 24, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 198, 51, 100, 0];
        let alone = [&head[..], &[8, 0, 4, 0, 7, 0, 0, 0], &via].concat();
        let hop = [&[32, 0, 0, 0, 7, 0, 0, 0], via.as_slice()].concat();
        let other = [16, 0, 0, 0, 8, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 1];
        let both = [&head[..], &[52, 0, 9, 0], &hop, &other].concat();
        let gw = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(StoredRoute::parse(&alone).unwrap().gws, [gw("fe80::1")]);
        assert_eq!(StoredRoute::parse(&both).unwrap().gws, [gw("fe80::1"), gw("192.0.2.1")]);
    }

    /// From a kernel 6.18: `default proto static src fd00::2 metric 1024 nexthop via fd00::1 dev 3 nexthop via fd01::1 dev 7`,
    /// from two routes. The second is `proto boot` without a source.
    #[test]
    fn a_link_has_its_part_of_an_ipv6_multipath_route() {
        let ip = |group: u8, host: u8| [&[0xfd, group], [0; 13].as_slice(), &[host]].concat();
        let hop =
            |group, link: u8| [&[28, 0, 0, 0, link, 0, 0, 0, 20, 0, 5, 0], ip(group, 1).as_slice()].concat();
        let mut body = vec![10, 0, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        body.extend([&[20, 0, 7, 0], ip(0, 2).as_slice()].concat());
        body.extend([8, 0, 6, 0, 0, 4, 0, 0, 60, 0, 9, 0]);
        body.extend([hop(0, 3), hop(1, 7)].concat());
        let route = StoredRoute::parse(&body).unwrap();
        assert_eq!((route.links.as_slice(), route.gws.len()), ([3, 7].as_slice(), 2));
        let part = route.of_link(7).unwrap();
        assert_eq!((part.links.as_slice(), part.src, part.priority), ([7].as_slice(), None, 1024));
        assert_eq!(part.gws, ["fd01::1".parse::<IpAddr>().unwrap()]);
        assert_eq!(part.of_link(7), Some(part.clone()));
        assert_eq!(route.of_link(9), None);
        // Any program: that of the second is not known.
        assert_eq!(part.delete_from(254).finish(1, 0).unwrap()[16 + 5], 0);
        // The next hops of an object belong together.
        let object = StoredRoute::parse(&[body.as_slice(), &[8, 0, 30, 0, 9, 0, 0, 0]].concat()).unwrap();
        assert_eq!((object.of_link(7), object.through(7)), (None, Some(part)));
        let again = StoredRoute::parse(&object.add_to(100).finish(1, 0).unwrap()[16..]).unwrap();
        assert!(again.has_object && again.links.is_empty());
    }
}

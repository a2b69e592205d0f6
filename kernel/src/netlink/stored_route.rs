//! Routes as the kernel lists them, with all their attributes, so that they can be moved to another table.
//!
//! # References
//! linux/rtnetlink.h; rtnetlink(7).

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::error::Error;
use super::message::{F_APPEND, F_CREATE, F_DUMP, Message, attrs, u16_at, u32_at};
use super::route::{
    RTA_DST, RTA_GATEWAY, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC, RTA_TABLE, RTM_DELROUTE, RTM_GETROUTE,
    RTM_NEWROUTE, RTMSG, RTN_UNICAST, RTNEXTHOP, RTNH_F_ONLINK, next_hops, unspecified,
};
use super::socket::{Answer, Socket};
use crate::ip::{IpFamily, from_octets};

const RTA_CACHEINFO: u16 = 12;
/// A next hop object. The kernel also lists what it contains.
const RTA_NH_ID: u16 = 30;

/// `RTPROT_KERNEL`: the kernel made the route, for an address.
pub const BY_KERNEL: u8 = 2;
/// `RTPROT_RA`: a router advertisement made the route.
pub const BY_ROUTER: u8 = 9;

/// A route in a routing table of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRoute {
    /// Its family.
    pub family: IpFamily,
    /// Destination.
    pub dst: IpNetwork,
    /// Its next hops: empty for a route to a connected network, several for a multipath route.
    pub gws: Vec<IpAddr>,
    /// The indexes of its output links, one for each next hop.
    pub links: Vec<u32>,
    /// The preferred source address.
    pub src: Option<IpAddr>,
    /// Routing table.
    pub table: u32,
    /// The program that made the route, `RTPROT_*`.
    pub protocol: u8,
    /// Whether it leads somewhere: neither `local`, `blackhole` nor another special type.
    pub is_unicast: bool,
    /// `struct rtmsg`, and the attributes with their types.
    raw: ([u8; RTMSG], Vec<(u16, Vec<u8>)>),
}

impl StoredRoute {
    /// A request that adds this route to a table, behind others to the same destination. `EEXIST` if it is there.
    pub fn add_to(&self, table: u32) -> Message {
        self.request(RTM_NEWROUTE, F_CREATE | F_APPEND, table)
    }

    /// A request that removes this route from a table; `ESRCH` if it is not there.
    pub fn delete_from(&self, table: u32) -> Message {
        self.request(RTM_DELROUTE, 0, table)
    }

    fn request(&self, kind: u16, flags: u16, table: u32) -> Message {
        let (mut header, attributes) = self.raw.clone();
        header[4] = u8::try_from(table).unwrap_or_default();
        // The kernel refuses the flags that describe the state of a next hop.
        let state = u32_at(&header, 8) & RTNH_F_ONLINK;
        header[8..12].copy_from_slice(&state.to_ne_bytes());
        let message = Message::new(kind, flags, &header).attr_u32(RTA_TABLE, table);
        let kept = attributes
            .into_iter()
            .filter(|(kind, _)| !matches!(*kind, RTA_TABLE | RTA_CACHEINFO | RTA_NH_ID));
        kept.fold(message, |message, (kind, mut value)| {
            if kind == RTA_MULTIPATH {
                for_each_hop(&mut value, |hop| hop[2] &= RTNH_F_ONLINK.to_le_bytes()[0]);
            }
            message.attr(kind, &value)
        })
    }
}

/// Calls `work` for each `struct rtnexthop`, including the attributes behind it.
fn for_each_hop(mut bytes: &mut [u8], mut work: impl FnMut(&mut [u8])) {
    loop {
        let len = usize::from(u16_at(bytes, 0));
        if len < RTNEXTHOP || len > bytes.len() {
            return;
        }
        work(&mut bytes[..len]);
        bytes = bytes.get_mut((len + 3) & !3..).unwrap_or_default();
    }
}

/// A request for the routes of one family in all tables.
pub fn list(family: IpFamily) -> Message {
    let mut header = [0; RTMSG];
    header[0] = family.number();
    Message::new(RTM_GETROUTE, F_DUMP, &header)
}

/// The routes in the answer to [`list`].
pub fn read(answer: Answer) -> Result<Vec<StoredRoute>, Error> {
    Ok(answer?.iter().filter_map(|body| parse(body)).collect())
}

impl Socket {
    /// The routes of both families in all tables. Meant for a container's namespace, which has few routes.
    pub fn stored_routes(&mut self) -> Result<Vec<StoredRoute>, Error> {
        let mut routes = read(self.request(list(IpFamily::V4)))?;
        match self.request(list(IpFamily::V6)) {
            // A kernel without IPv6.
            Err(error) if error.errno == nix::errno::Errno::EOPNOTSUPP => {}
            answer => routes.extend(read(answer)?),
        }
        Ok(routes)
    }
}

fn parse(body: &[u8]) -> Option<StoredRoute> {
    let header: [u8; RTMSG] = body.get(..RTMSG)?.try_into().ok()?;
    let family = IpFamily::ALL.into_iter().find(|family| family.number() == header[0])?;
    let attributes = attrs(&body[RTMSG..]).map(|(kind, value)| (kind, value.to_vec()));
    let mut route = StoredRoute {
        family,
        dst: IpNetwork::new(unspecified(family), header[1]).ok()?,
        gws: Vec::new(),
        links: Vec::new(),
        src: None,
        table: u32::from(header[4]),
        protocol: header[5],
        is_unicast: header[7] == RTN_UNICAST,
        raw: (header, attributes.collect()),
    };
    for (kind, value) in &route.raw.1 {
        match *kind {
            RTA_DST => route.dst = IpNetwork::new(from_octets(value)?, header[1]).ok()?,
            RTA_GATEWAY => route.gws.extend(from_octets(value)),
            RTA_OIF => route.links.push(u32_at(value, 0)),
            RTA_PREFSRC => route.src = from_octets(value),
            RTA_TABLE => route.table = u32_at(value, 0),
            RTA_MULTIPATH => {
                route.gws.extend(next_hops(value));
                for_each_hop(&mut value.clone(), |hop| route.links.push(u32_at(hop, 4)));
            }
            _ => {}
        }
    }
    Some(route)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a kernel 6.18: `10.9.0.0/16 proto static nexthop via 192.0.2.1 dev 7 weight 1 linkdown nexthop via
    /// 192.0.2.2 dev 7 weight 2`.
    #[test]
    fn a_multipath_route_is_moved_with_its_next_hops() {
        let mut body = vec![2, 16, 0, 0, 254, 4, 0, 1, 16, 0, 0, 0];
        body.extend([8, 0, 15, 0, 254, 0, 0, 0, 8, 0, 1, 0, 10, 9, 0, 0]);
        body.extend([36, 0, 9, 0]);
        body.extend([16, 0, 16, 0, 7, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 1]);
        body.extend([16, 0, 0, 1, 7, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 2]);
        let route = parse(&body).unwrap();
        let moved = route.add_to(1000).finish(1, 0).unwrap();
        let moved = parse(&moved[16..]).unwrap();
        for (route, table) in [(&route, 254), (&moved, 1000)] {
            assert_eq!(route.gws, ["192.0.2.1", "192.0.2.2"].map(|gw| gw.parse::<IpAddr>().unwrap()));
            assert_eq!((route.links.as_slice(), route.table), ([7, 7].as_slice(), table));
            assert_eq!(
                (route.dst, route.protocol, route.is_unicast),
                ("10.9.0.0/16".parse().unwrap(), 4, true)
            );
        }
        // Without the flags of the state, with the weights.
        assert_eq!((moved.raw.0[8], &moved.raw.1.last().unwrap().1[..4]), (0, [16, 0, 0, 0].as_slice()));
        assert_eq!(moved.raw.1.last().unwrap().1[16..20], [16, 0, 0, 1]);
    }
}

//! Routes.
//!
//! # References
//! linux/rtnetlink.h; rtnetlink(7).

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::error::Error;
use super::message::{F_CREATE, F_DUMP, Message, attrs, u16_at, u32_at};
use super::socket::{Answer, Socket};
use crate::ip::{IpFamily, from_octets, octets};

pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_GETROUTE: u16 = 26;

/// Length of `struct rtmsg`.
pub(super) const RTMSG: usize = 12;
/// Length of `struct rtnexthop`.
pub(super) const RTNEXTHOP: usize = 8;

pub(super) const RTA_DST: u16 = 1;
pub(super) const RTA_OIF: u16 = 4;
pub(super) const RTA_GATEWAY: u16 = 5;
pub(super) const RTA_PRIORITY: u16 = 6;
pub(super) const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
pub(super) const RTA_MULTIPATH: u16 = 9;
pub(super) const RTA_TABLE: u16 = 15;
pub(super) const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

const RT_TABLE_UNSPEC: u8 = 0;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
pub(super) const RTN_UNICAST: u8 = 1;
pub(super) const RTNH_F_ONLINK: u32 = 4;

/// The main routing table.
pub const MAIN_TABLE: u32 = RT_TABLE_MAIN as u32;

/// A route to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub dst: IpNetwork,
    /// Next hop.
    pub gw: Option<IpAddr>,
    /// The preferred source address.
    pub src: Option<IpAddr>,
    /// The next hop is reachable through the link even if no route says so.
    pub onlink: bool,
    /// Path MTU in bytes; 0 for the kernel's default.
    pub mtu: u32,
    /// Advertised MSS in bytes; 0 for the kernel's default.
    pub advmss: u32,
    /// Metric; 0 for the kernel's default.
    pub priority: u32,
    /// Routing table; `None` for the main table.
    pub table: Option<u32>,
    /// Scope as in linux/rtnetlink.h: 0 global, 253 link, 254 host.
    pub scope: Option<u32>,
    /// The program that makes the route, `RTPROT_*` of linux/rtnetlink.h or another number; 0 for `RTPROT_BOOT`.
    pub protocol: u8,
}

/// A request that adds a route through the link with index `oif`. Other routes to the same destination stay
/// if they differ in next hop or metric.
pub fn add(oif: u32, route: &Route) -> Message {
    request(RTM_NEWROUTE, F_CREATE, oif, route)
}

/// A request that removes a route through the link with index `oif`; `ESRCH` if there is none.
pub fn delete(oif: u32, route: &Route) -> Message {
    request(RTM_DELROUTE, 0, oif, route)
}

fn request(kind: u16, flags: u16, oif: u32, route: &Route) -> Message {
    let table = route.table.filter(|table| *table != 0).unwrap_or(MAIN_TABLE);
    let mut header = [0; RTMSG];
    header[0] = IpFamily::of(route.dst.ip()).number();
    header[1] = route.dst.prefix();
    header[4] = u8::try_from(table).unwrap_or(RT_TABLE_UNSPEC);
    header[5] = if route.protocol == 0 { RTPROT_BOOT } else { route.protocol };
    header[6] = route.scope.and_then(|scope| u8::try_from(scope).ok()).unwrap_or_default();
    header[7] = RTN_UNICAST;
    header[8..12].copy_from_slice(&(if route.onlink { RTNH_F_ONLINK } else { 0 }).to_ne_bytes());
    let mut message = Message::new(kind, flags, &header)
        .attr(RTA_DST, &octets(route.dst.network()))
        .attr_u32(RTA_OIF, oif)
        .attr_u32(RTA_TABLE, table);
    if let Some(gw) = route.gw {
        message = message.attr(RTA_GATEWAY, &octets(gw));
    }
    if let Some(src) = route.src {
        message = message.attr(RTA_PREFSRC, &octets(src));
    }
    if route.priority != 0 {
        message = message.attr_u32(RTA_PRIORITY, route.priority);
    }
    if (route.mtu, route.advmss) == (0, 0) {
        return message;
    }
    message.nest(RTA_METRICS, |mut metrics| {
        for (kind, value) in [(RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss)] {
            if value != 0 {
                metrics = metrics.attr_u32(kind, value);
            }
        }
        metrics
    })
}

/// `RTM_F_FIB_MATCH`, since Linux 4.13: return the matching route of the table, not the route cache entry of
/// the packet.
const FIB_MATCH: u32 = 0x2000;
/// `RTM_F_LOOKUP_TABLE`: return the number of the table that has the route, not always that of the main table. IPv6
/// always does, and refuses the flag.
const LOOKUP_TABLE: u32 = 0x1000;
/// `RTN_LOCAL`
const RTN_LOCAL: u8 = 2;

/// The result of a route lookup for one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLookup {
    /// The address is a local address of this namespace.
    pub local: bool,
    /// The index of the output link.
    pub oif: Option<u32>,
    /// The route has a gateway.
    pub routed: bool,
    /// The prefix length of the matching route; 0 for the default route.
    pub prefix: u8,
}

/// A request that looks up the route to an address.
pub fn lookup(ip: IpAddr) -> Message {
    let mut header = [0; RTMSG];
    header[0] = IpFamily::of(ip).number();
    header[1] = IpFamily::of(ip).bits();
    let flags = if ip.is_ipv4() { FIB_MATCH | LOOKUP_TABLE } else { FIB_MATCH };
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    Message::new(RTM_GETROUTE, 0, &header).attr(RTA_DST, &octets(ip)).one_answer()
}

/// A request for the routes of one family in one table.
pub fn list(family: IpFamily, table: u32) -> Message {
    let mut header = [0; RTMSG];
    header[0] = family.number();
    header[4] = u8::try_from(table).unwrap_or(RT_TABLE_UNSPEC);
    Message::new(RTM_GETROUTE, F_DUMP, &header).attr_u32(RTA_TABLE, table)
}

impl Socket {
    /// Looks up the route to an address. `None` if the address is unreachable.
    pub fn route_to(&mut self, ip: IpAddr) -> Result<Option<RouteLookup>, Error> {
        read(self.request(lookup(ip)))
    }
}

/// The route in the answer to [`lookup`]. `None` if the address is unreachable.
pub fn read(answer: Answer) -> Result<Option<RouteLookup>, Error> {
    match answer {
        Ok(bodies) => Ok(bodies.first().and_then(|body| parse_lookup(body))),
        Err(error) if is_unreachable(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_unreachable(error: &Error) -> bool {
    use nix::errno::Errno;
    matches!(error.errno, Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EINVAL)
}

fn parse_lookup(body: &[u8]) -> Option<RouteLookup> {
    let header = body.get(..RTMSG)?;
    let attributes = || attrs(&body[RTMSG..]);
    Some(RouteLookup {
        local: header[7] == RTN_LOCAL,
        oif: attributes().find(|(kind, _)| *kind == RTA_OIF).map(|(_, value)| u32_at(value, 0)),
        routed: attributes().any(|(kind, _)| matches!(kind, RTA_GATEWAY | RTA_VIA | RTA_MULTIPATH)),
        prefix: header[1],
    })
}

/// The address 0.0.0.0 or ::, which a route without a destination means.
pub(super) fn unspecified(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => [0; 4].into(),
        IpFamily::V6 => [0; 16].into(),
    }
}

/// The gateways in a list of `struct rtnexthop`, each followed by its attributes.
pub(super) fn next_hops(mut bytes: &[u8]) -> Vec<IpAddr> {
    let mut gws = Vec::new();
    while let Some(hop) = bytes.get(..usize::from(u16_at(bytes, 0))).filter(|hop| hop.len() >= RTNEXTHOP) {
        gws.extend(
            attrs(&hop[RTNEXTHOP..])
                .filter(|(kind, _)| *kind == RTA_GATEWAY)
                .filter_map(|(_, gw)| from_octets(gw)),
        );
        bytes = bytes.get((hop.len() + 3) & !3..).unwrap_or_default();
    }
    gws
}

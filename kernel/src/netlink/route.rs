//! Routes.
//!
//! # References
//! linux/rtnetlink.h; rtnetlink(7).

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::libc::{
    RT_TABLE_MAIN, RT_TABLE_UNSPEC, RTA_DST, RTA_GATEWAY, RTA_METRICS, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC,
    RTA_PRIORITY, RTA_TABLE, RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE, RTN_LOCAL, RTN_UNICAST, RTPROT_BOOT,
};

use super::error::Error;
use super::message::{F_CREATE, F_DUMP, F_EXCL, F_REPLACE, Message, attrs, find_attr, u16_at, u32_at};
use super::socket::{Answer, Socket, ignoring};
use crate::ip::{IpFamily, from_octets, octets};

pub(super) const RTA_VIA: u16 = 18;

/// Length of `struct rtmsg`.
pub(super) const RTMSG: usize = 12;
/// Length of `struct rtnexthop`.
pub(super) const RTNEXTHOP: usize = 8;

const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

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

/// As [`add`], but `EEXIST` if there is a route to the same destination with the same metric.
pub fn add_new(oif: u32, route: &Route) -> Message {
    request(RTM_NEWROUTE, F_CREATE | F_EXCL, oif, route)
}

/// As [`add`], but instead of a route to the same destination with the same metric.
pub fn replace(oif: u32, route: &Route) -> Message {
    request(RTM_NEWROUTE, F_CREATE | F_REPLACE, oif, route)
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
    let number = |number: u32| (number != 0).then(|| number.to_ne_bytes());
    let message = Message::new(kind, flags, &header)
        .attr(RTA_DST, &octets(route.dst.network()))
        .attr_u32(RTA_OIF, oif)
        .attr_u32(RTA_TABLE, table)
        .attr_if(RTA_GATEWAY, route.gw.map(octets))
        .attr_if(RTA_PREFSRC, route.src.map(octets))
        .attr_if(RTA_PRIORITY, number(route.priority));
    if (route.mtu, route.advmss) == (0, 0) {
        return message;
    }
    message.nest(RTA_METRICS, |metrics| {
        metrics.attr_if(RTAX_MTU, number(route.mtu)).attr_if(RTAX_ADVMSS, number(route.advmss))
    })
}

/// `RTM_F_FIB_MATCH`, since Linux 4.13: return the matching route of the table, not the route cache entry of
/// the packet.
const FIB_MATCH: u32 = 0x2000;
/// `RTM_F_LOOKUP_TABLE`: return the number of the table that has the route, not always that of the main table. IPv6
/// always does, and refuses the flag.
const LOOKUP_TABLE: u32 = 0x1000;

/// The route to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    /// The address is a local address of this namespace.
    pub local: bool,
    /// The index of the output link.
    pub oif: Option<u32>,
    /// The route has a gateway.
    pub routed: bool,
    /// The prefix length of the matching route; 0 for the default route.
    pub prefix: u8,
}

/// A request that finds the route to an address.
pub fn find(ip: IpAddr) -> Message {
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
    /// Finds the route to an address. `None` if the address is unreachable.
    pub fn route_to(&mut self, ip: IpAddr) -> Result<Option<FoundRoute>, Error> {
        read(self.request(find(ip)))
    }
}

/// The route in the answer to [`find`]. `None` if the address is unreachable.
pub fn read(answer: Answer) -> Result<Option<FoundRoute>, Error> {
    use Errno::{EACCES, EHOSTUNREACH, EINVAL, ENETUNREACH};
    let bodies = ignoring(answer, &[ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL])?;
    Ok(bodies.first().and_then(|body| parse_found(body)))
}

fn parse_found(body: &[u8]) -> Option<FoundRoute> {
    let header = body.get(..RTMSG)?;
    Some(FoundRoute {
        local: header[7] == RTN_LOCAL,
        oif: find_attr(&body[RTMSG..], RTA_OIF).map(|value| u32_at(value, 0)),
        routed: attrs(&body[RTMSG..]).any(|(kind, _)| matches!(kind, RTA_GATEWAY | RTA_VIA | RTA_MULTIPATH)),
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

/// The address of a `struct rtvia`: the next hop of a route of another family.
pub(super) fn via(value: &[u8]) -> Option<IpAddr> {
    from_octets(value.get(2..)?)
}

/// Each `struct rtnexthop` of a list, with the attributes behind it.
pub(super) fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let hop = bytes.get(..usize::from(u16_at(bytes, 0))).filter(|hop| hop.len() >= RTNEXTHOP)?;
        bytes = bytes.get(hop.len().next_multiple_of(4)..).unwrap_or_default();
        Some(hop)
    })
}

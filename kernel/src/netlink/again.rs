//! Adds addresses and routes again that a link has lost, from the messages with which the kernel has described them. So
//! all their attributes come back, as with `ip address restore` and `ip route restore`.
//!
//! # References
//! linux/if_addr.h, linux/rtnetlink.h; ip-address(8), "save".

use nix::errno::Errno;

use super::addr::{self, Address, IFADDR, RTM_NEWADDR};
use super::error::Error;
use super::message::{F_CREATE, F_DUMP, F_EXCL, Message, attrs, u32_at};
use super::route::{
    self, Entry, RTA_MULTIPATH, RTA_OIF, RTM_GETROUTE, RTM_NEWROUTE, RTMSG, RTN_UNICAST, RTNH_F_ONLINK,
};
use super::socket::{Answer, Socket};
use crate::ip::IpFamily;

const RTA_CACHEINFO: u16 = 12;
const RTA_NH_ID: u16 = 30;
/// `RTPROT_REDIRECT`, `RTPROT_KERNEL` and `RTPROT_RA`: the kernel adds these routes by itself.
const BY_THE_KERNEL: [u8; 3] = [1, 2, 9];
/// `RTM_F_CLONED`: an entry of the route cache.
const CLONED: u32 = 0x200;

/// The body of a message that describes an address or a route.
pub type Description = Vec<u8>;

/// The descriptions in the answer to [`addr::list`] of the link with this index.
pub fn addresses(answer: Answer, link: u32) -> Result<Vec<Description>, Error> {
    let bodies = answer?;
    Ok(bodies.into_iter().filter(|body| u32_at(body, 4) == link).collect())
}

/// The address. `None` if the description is not one of an address.
pub fn address(description: &[u8]) -> Option<Address> {
    addr::parse(description)
}

/// A request that adds the address to the link with this index; `EEXIST` if the link has it.
pub fn add_address(link: u32, description: &[u8]) -> Message {
    let mut header = [0; IFADDR];
    header.iter_mut().zip(description).for_each(|(to, from)| *to = *from);
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    let message = Message::new(RTM_NEWADDR, F_CREATE | F_EXCL, &header);
    with_attributes(message, description.get(IFADDR..), &[])
}

/// The route and its scope as in linux/rtnetlink.h. `None` if the description is not one of a route.
pub fn route(description: &[u8]) -> Option<(Entry, u8)> {
    Some((route::parse(description)?, *description.get(6)?))
}

/// A request that adds the route through the link with index `oif`; `EEXIST` if it is there.
pub fn add_route(oif: u32, description: &[u8]) -> Message {
    let mut header = [0; RTMSG];
    header.iter_mut().zip(description).for_each(|(to, from)| *to = *from);
    // The other flags are the state of the next hop.
    let flags = u32_at(&header, 8) & RTNH_F_ONLINK;
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    let message = Message::new(RTM_NEWROUTE, F_CREATE | F_EXCL, &header).attr_u32(RTA_OIF, oif);
    // The kernel has described the next hop of RTA_NH_ID by attributes too, and accepts only one of both.
    with_attributes(message, description.get(RTMSG..), &[RTA_OIF, RTA_CACHEINFO, RTA_NH_ID])
}

fn with_attributes(message: Message, bytes: Option<&[u8]>, except: &[u16]) -> Message {
    let kept = attrs(bytes.unwrap_or_default()).filter(|(kind, _)| !except.contains(kind));
    kept.fold(message, |message, (kind, value)| message.attr(kind, value))
}

/// A request for the routes of one family through a link, in all tables.
pub fn list_routes(family: IpFamily, oif: u32) -> Message {
    let mut header = [0; RTMSG];
    header[0] = family.number();
    Message::new(RTM_GETROUTE, F_DUMP, &header).attr_u32(RTA_OIF, oif)
}

impl Socket {
    /// The unicast routes through the link with this index, except those that the kernel adds by itself and multipath
    /// routes.
    pub fn routes_through(&mut self, oif: u32) -> Result<Vec<Description>, Error> {
        let mut routes = Vec::new();
        for family in IpFamily::ALL {
            match self.request(list_routes(family, oif)) {
                Ok(bodies) => routes.extend(bodies.into_iter().filter(|body| is_added(body, oif))),
                // The kernel has no IPv6.
                Err(error) if matches!(error.errno, Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(routes)
    }
}

/// Whether someone has added the route, through this link. Kernels before 4.20 list all routes of the family.
fn is_added(body: &[u8], oif: u32) -> bool {
    let Some(header) = body.get(..RTMSG) else { return false };
    let has = |wanted: u16| attrs(&body[RTMSG..]).find(|(kind, _)| *kind == wanted);
    header[7] == RTN_UNICAST
        && !BY_THE_KERNEL.contains(&header[5])
        && u32_at(header, 8) & CLONED == 0
        && has(RTA_MULTIPATH).is_none()
        && has(RTA_OIF).is_some_and(|(_, value)| u32_at(value, 0) == oif)
}

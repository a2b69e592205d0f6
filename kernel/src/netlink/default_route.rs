//! The link of the default route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::errno::Errno;
use nix::libc::{RTA_MULTIPATH, RTA_OIF, RTA_TABLE, RTN_UNICAST};

use super::error::Error;
use super::message::{find_attr, u32_at};
use super::route::{self, MAIN_TABLE, RTMSG, next_hops};
use super::socket::{Socket, ignoring};
use crate::ip::IpFamily;

/// `RTNH_F_DEAD | RTNH_F_LINKDOWN`
const DOWN: u8 = 1 | 16;
/// Addresses for documentation (RFC 5737, RFC 3849): few nodes have a route to them beside the default route.
const PROBES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

impl Socket {
    /// The index of the link of the main table's default route: of IPv4, else of IPv6. Of several default routes that
    /// with the lowest metric counts, of several next hops the first that is up.
    ///
    /// The route to an address usually is that route. If it is another one, the table is listed.
    pub fn default_route_link(&mut self) -> Result<Option<u32>, Error> {
        for probe in PROBES {
            let found = self.request(route::find(probe)).unwrap_or_default();
            if let Some(index) = found.iter().find_map(|body| output_link(body)) {
                return Ok(Some(index));
            }
            let listed = self.request(route::list(IpFamily::of(probe), MAIN_TABLE));
            // The table has never had a route, or the kernel lacks the family.
            let listed = ignoring(listed, &[Errno::ENOENT, Errno::EOPNOTSUPP])?;
            if let Some(index) = listed.iter().find_map(|body| output_link(body)) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

/// The link of a unicast default route of the main table; `None` for any other route.
fn output_link(body: &[u8]) -> Option<u32> {
    let header = body.get(..RTMSG)?;
    let attribute = |kind| find_attr(&body[RTMSG..], kind);
    let table = attribute(RTA_TABLE).map_or(u32::from(header[4]), |value| u32_at(value, 0));
    if header[1] != 0 || header[7] != RTN_UNICAST || table != MAIN_TABLE {
        return None;
    }
    let only = attribute(RTA_OIF).map(|value| u32_at(value, 0));
    only.or_else(|| first_hop(attribute(RTA_MULTIPATH)?)).filter(|index| *index != 0)
}

/// The link of the first next hop that is up, else of the first one, in a list of `struct rtnexthop`.
fn first_hop(hops: &[u8]) -> Option<u32> {
    let up = next_hops(hops).find(|hop| hop[2] & DOWN == 0);
    up.or_else(|| next_hops(hops).next()).map(|hop| u32_at(hop, 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body of an answer: destination length, type, and one attribute.
    fn body(prefix: u8, kind: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len() + 4).unwrap();
        let header = [2, prefix, 0, 0, 254, 3, 0, kind, 0, 0, 0, 0];
        [&header, &len.to_ne_bytes()[..], &attribute.to_ne_bytes(), value].concat()
    }

    #[test]
    fn only_a_unicast_default_route_counts() {
        let oif = 3_u32.to_ne_bytes();
        assert_eq!(output_link(&body(0, RTN_UNICAST, RTA_OIF, &oif)), Some(3));
        assert_eq!(output_link(&body(1, RTN_UNICAST, RTA_OIF, &oif)), None);
        let blackhole = 6;
        assert_eq!(output_link(&body(0, blackhole, RTA_OIF, &oif)), None);
        assert_eq!(output_link(&body(0, RTN_UNICAST, RTA_TABLE, &100_u32.to_ne_bytes())), None);
        assert_eq!(output_link(&[]), None);
    }

    #[test]
    fn of_several_next_hops_the_first_that_is_up_counts() {
        let hop = |flags: u8, index: u8| [8, 0, flags, 0, index, 0, 0, 0];
        let hops = |list: &[[u8; 8]]| output_link(&body(0, RTN_UNICAST, RTA_MULTIPATH, &list.concat()));
        assert_eq!(hops(&[hop(16, 4), hop(0, 5), hop(0, 6)]), Some(5));
        assert_eq!(hops(&[hop(1, 4), hop(16, 5)]), Some(4));
        assert_eq!(hops(&[]), None);
    }
}

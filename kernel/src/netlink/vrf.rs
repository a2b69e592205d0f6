//! Virtual routing and forwarding (VRF) devices: their ports use a routing table of their own.
//!
//! # References
//! linux/if_link.h: `IFLA_VRF_*`, `IFLA_VRF_PORT_*`; Documentation/networking/vrf.rst.

use super::error::Error;
use super::link::{
    self, IFF_UP, IFLA_EXT_MASK, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_MASTER, Link,
    NewLink, RTM_GETLINK, SKIP_STATS, ifinfo,
};
use super::message::{F_DUMP, Message, find_attr, text, u32_at};
use super::socket::Socket;

/// The link kind of a VRF.
pub const KIND: &str = "vrf";

const IFLA_INFO_SLAVE_KIND: u16 = 4;
/// The table of a VRF.
const IFLA_VRF_TABLE: u16 = 1;
/// The table of the VRF to which a port belongs.
const IFLA_VRF_PORT_TABLE: u16 = 1;

/// A request that makes a VRF and sets it up. `EEXIST` if there is a link of that name, `EOPNOTSUPP` if the kernel has
/// no VRFs, `EINVAL` for table 0.
pub fn create(name: &str, table: u32) -> Message {
    let vrf = NewLink { kind: KIND, name, flags: IFF_UP, ..NewLink::default() };
    vrf.request_with(|info| info.nest(IFLA_INFO_DATA, |data| data.attr_u32(IFLA_VRF_TABLE, table)))
}

/// The table in the `IFLA_LINKINFO` of a VRF or of a port of one.
pub(super) fn table(info: &[u8]) -> Option<u32> {
    let is_vrf = |kind| find_attr(info, kind).is_some_and(|name| text(name) == KIND);
    let data = match (is_vrf(IFLA_INFO_KIND), is_vrf(IFLA_INFO_SLAVE_KIND)) {
        (true, _) => find_attr(find_attr(info, IFLA_INFO_DATA)?, IFLA_VRF_TABLE),
        (_, true) => find_attr(find_attr(info, IFLA_INFO_SLAVE_DATA)?, IFLA_VRF_PORT_TABLE),
        _ => None,
    };
    data.map(|table| u32_at(table, 0))
}

/// A request for the ports of a VRF or a bridge.
pub fn list_ports(index: u32) -> Message {
    let all = Message::new(RTM_GETLINK, F_DUMP, &ifinfo(0, 0, 0, 0)).attr_u32(IFLA_EXT_MASK, SKIP_STATS);
    all.attr_u32(IFLA_MASTER, index)
}

impl Socket {
    /// The ports of the VRF or bridge with this index.
    pub fn ports(&mut self, index: u32) -> Result<Vec<Link>, Error> {
        let bodies = self.request(list_ports(index))?;
        let links = bodies.iter().map(|body| link::parse(body));
        // Kernels before 4.6 ignore the master and dump all links.
        Ok(links.filter(|link| link.master == Some(index)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_a_vrf_and_of_its_port() {
        let info = |kind, data, name: &str| {
            let message = Message::new(0, 0, &[]).attr_text(kind, name);
            let bytes = message.nest(data, |data| data.attr_u32(1, 1000)).finish(0, 0).unwrap();
            table(&bytes[16..])
        };
        assert_eq!(info(IFLA_INFO_KIND, IFLA_INFO_DATA, "vrf"), Some(1000));
        assert_eq!(info(IFLA_INFO_SLAVE_KIND, IFLA_INFO_SLAVE_DATA, "vrf"), Some(1000));
        assert_eq!(info(IFLA_INFO_SLAVE_KIND, IFLA_INFO_SLAVE_DATA, "bridge"), None);
    }
}

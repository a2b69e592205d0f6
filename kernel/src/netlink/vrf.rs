//! Virtual routing and forwarding (VRF) devices: their ports use a routing table of their own.
//!
//! # References
//! linux/if_link.h: `IFLA_VRF_*`, `IFLA_VRF_PORT_*`; Documentation/networking/vrf.rst.

use nix::libc::{IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND};

use super::ifinfo::IFF_UP;
use super::message::{Message, find_attr, text, u32_at};
use super::new_link::NewLink;

/// The link kind of a VRF.
pub const KIND: &str = "vrf";

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

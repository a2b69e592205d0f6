//! Bridges, and the settings and VLANs of their ports.
//!
//! # References
//! linux/if_link.h, linux/if_bridge.h.

use nix::errno::Errno;
use nix::libc::{IFLA_AF_SPEC, IFLA_EXT_MASK, IFLA_INFO_DATA, IFLA_NUM_TX_QUEUES, IFLA_PROTINFO};

use super::error::Error;
use super::ifinfo::{IFINFO, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK, ifinfo};
use super::message::{F_DUMP, Message, attrs, find_attr, u16_at, u32_at};
use super::new_link::NewLink;
use super::socket::{Answer, Socket};

const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_VLAN_PROTOCOL: u16 = 8;
const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_ISOLATED: u16 = 33;
const IFLA_BRIDGE_FLAGS: u16 = 0;
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;

/// `AF_BRIDGE`
pub(super) const AF_BRIDGE: u8 = 7;
/// `BRIDGE_FLAGS_MASTER`: the request is for the port's bridge.
const MASTER: u16 = 1;
/// `RTEXT_FILTER_BRVLAN_COMPRESSED`: list VLANs as ranges.
const VLAN_RANGES: u32 = 1 << 2;

/// `BRIDGE_VLAN_INFO_PVID`: untagged frames that arrive belong to this VLAN.
pub const PVID: u16 = 1 << 1;
/// `BRIDGE_VLAN_INFO_UNTAGGED`: frames of this VLAN leave untagged.
pub const UNTAGGED: u16 = 1 << 2;
/// `BRIDGE_VLAN_INFO_RANGE_BEGIN`
const RANGE_BEGIN: u16 = 1 << 3;
/// `BRIDGE_VLAN_INFO_RANGE_END`
const RANGE_END: u16 = 1 << 4;

/// The VLAN filtering of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanFiltering {
    /// Whether the bridge filters.
    pub is_on: bool,
    /// The native VLAN of each new port; 0 for none.
    pub default_pvid: u16,
}

/// The VLAN filtering in the attributes of a bridge (`IFLA_INFO_DATA`). `None` if the kernel was built without
/// it: such a kernel reports that filtering is off, but no default VLAN.
pub(super) fn vlan_filtering(data: &[u8]) -> Option<VlanFiltering> {
    let default_pvid = u16_at(find_attr(data, IFLA_BR_VLAN_DEFAULT_PVID)?, 0);
    let is_on = find_attr(data, IFLA_BR_VLAN_FILTERING).is_some_and(|value| value.first() == Some(&1));
    Some(VlanFiltering { is_on, default_pvid })
}

/// A request that makes a bridge that filters VLANs. `EOPNOTSUPP` if the kernel was built without it.
pub fn new_filtering(bridge: &NewLink<'_>) -> Message {
    bridge.request_with(|info| info.nest(IFLA_INFO_DATA, |data| data.attr(IFLA_BR_VLAN_FILTERING, &[1])))
}

/// A request for a bridge without queues and with an invalid VLAN protocol. It always fails; [`lacks_filtering`] of the answer
/// says whether the kernel was built without VLAN filtering. The kernel checks the protocol first, if it knows it.
pub fn probe_filtering() -> Message {
    let bridge = NewLink { kind: "bridge", ..NewLink::default() };
    let request = bridge.request_with(|info| {
        info.nest(IFLA_INFO_DATA, |data| data.attr(IFLA_BR_VLAN_PROTOCOL, &0u16.to_be_bytes()))
    });
    request.attr_u32(IFLA_NUM_TX_QUEUES, 0)
}

/// Whether the answer to [`probe_filtering`] means that the kernel was built without VLAN filtering.
pub fn lacks_filtering(answer: &Answer) -> bool {
    matches!(answer, Err(error) if error.errno == Errno::EINVAL)
}

/// The settings of a bridge port that plugins use. In a request, `None` leaves a setting as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSettings {
    /// Hairpin mode: the bridge may send a frame back to the port from which it came.
    pub hairpin: Option<bool>,
    /// Isolation: the bridge forwards no frame between two isolated ports.
    pub isolated: Option<bool>,
}

impl PortSettings {
    /// A request that changes the settings of the port with this index. Kernels before 4.18 have no isolation and
    /// ignore it.
    pub fn request(self, port: u32) -> Message {
        let settings = [(IFLA_BRPORT_MODE, self.hairpin), (IFLA_BRPORT_ISOLATED, self.isolated)];
        let settings = settings.into_iter().filter_map(|(kind, value)| Some((kind, value?)));
        Message::new(RTM_SETLINK, 0, &ifinfo(AF_BRIDGE, port, 0, 0)).nest(IFLA_PROTINFO, |info| {
            settings.fold(info, |info, (kind, value)| info.attr(kind, &[u8::from(value)]))
        })
    }

    /// The settings in the attributes of a port (`IFLA_INFO_SLAVE_DATA`).
    pub(super) fn parse(data: &[u8]) -> PortSettings {
        let read = |kind| find_attr(data, kind).map(|value| value.first() == Some(&1));
        PortSettings { hairpin: read(IFLA_BRPORT_MODE), isolated: read(IFLA_BRPORT_ISOLATED) }
    }
}

/// VLANs of a bridge port with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlans {
    /// The first number.
    pub first: u16,
    /// The last number.
    pub last: u16,
    /// [`PVID`] and [`UNTAGGED`].
    pub flags: u16,
}

/// A request that adds VLANs to the port with this index, or changes their flags.
pub fn add_vlans(port: u32, vlans: &[Vlans]) -> Message {
    vlan_request(RTM_SETLINK, port, vlans)
}

/// A request that removes VLANs from the port with this index.
pub fn delete_vlans(port: u32, vlans: &[Vlans]) -> Message {
    vlan_request(RTM_DELLINK, port, vlans)
}

fn vlan_request(kind: u16, port: u32, vlans: &[Vlans]) -> Message {
    let info = |message: Message, flags: u16, number: u16| {
        message.attr(IFLA_BRIDGE_VLAN_INFO, &[flags.to_ne_bytes(), number.to_ne_bytes()].concat())
    };
    Message::new(kind, 0, &ifinfo(AF_BRIDGE, port, 0, 0)).nest(IFLA_AF_SPEC, |spec| {
        let spec = spec.attr(IFLA_BRIDGE_FLAGS, &MASTER.to_ne_bytes());
        vlans.iter().fold(spec, |spec, Vlans { first, last, flags }| {
            if first == last {
                return info(spec, *flags, *first);
            }
            info(info(spec, flags | RANGE_BEGIN, *first), flags | RANGE_END, *last)
        })
    })
}

/// A request for the VLANs of all ports: the kernel has no request for those of one port that kernels before
/// 5.6 know.
pub fn list_vlans() -> Message {
    Message::new(RTM_GETLINK, F_DUMP, &ifinfo(AF_BRIDGE, 0, 0, 0)).attr_u32(IFLA_EXT_MASK, VLAN_RANGES)
}

impl Socket {
    /// The VLANs of the port with this index, in ascending order.
    pub fn vlans(&mut self, port: u32) -> Result<Vec<Vlans>, Error> {
        let bodies = self.request(list_vlans())?;
        Ok(bodies.iter().filter(|body| u32_at(body, 4) == port).flat_map(|body| parse_vlans(body)).collect())
    }
}

fn parse_vlans(body: &[u8]) -> Vec<Vlans> {
    let spec = body.get(IFINFO..).and_then(|attributes| find_attr(attributes, IFLA_AF_SPEC));
    let mut first = 0;
    let infos = attrs(spec.unwrap_or_default()).filter(|(kind, _)| *kind == IFLA_BRIDGE_VLAN_INFO);
    let vlans = infos.filter_map(|(_, value)| {
        let (flags, number) = (u16_at(value, 0), u16_at(value, 2));
        if flags & RANGE_BEGIN != 0 {
            first = number;
            return None;
        }
        let first = if flags & RANGE_END != 0 { first } else { number };
        Some(Vlans { first, last: number, flags: flags & (PVID | UNTAGGED) })
    });
    vlans.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlans_are_read_with_their_ranges() {
        let wanted = [
            Vlans { first: 1, last: 1, flags: PVID | UNTAGGED },
            Vlans { first: 100, last: 110, flags: 0 },
            Vlans { first: 4094, last: 4094, flags: UNTAGGED },
        ];
        // The answer has the layout of the request.
        let body = &add_vlans(3, &wanted).finish(1, 0).unwrap()[16..];
        assert_eq!(parse_vlans(body), wanted);
        assert_eq!(parse_vlans(&[]), []);
    }

    #[test]
    fn a_kernel_without_vlan_filtering_reports_no_default_vlan() {
        let data = |with_pvid: bool| {
            let data = Message::new(0, 0, &[]).attr(IFLA_BR_VLAN_FILTERING, &[u8::from(with_pvid)]);
            let data = if with_pvid { data.attr(IFLA_BR_VLAN_DEFAULT_PVID, &[7, 0]) } else { data };
            data.finish(1, 0).unwrap()[16..].to_vec()
        };
        assert_eq!(vlan_filtering(&data(false)), None);
        assert_eq!(vlan_filtering(&data(true)), Some(VlanFiltering { is_on: true, default_pvid: 7 }));
    }
}

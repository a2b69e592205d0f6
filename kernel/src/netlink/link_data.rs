//! What a link of some kinds has beyond other links: the mode of a macvlan or an ipvlan, the ID of a VLAN, the owner of a
//! tap device, the ends of a VXLAN.
//!
//! # References
//! linux/if_link.h: `IFLA_MACVLAN_*`, `IFLA_IPVLAN_*`, `IFLA_VLAN_*`, `IFLA_TUN_*`, `IFLA_VXLAN_*`.

use std::fmt;
use std::net::IpAddr;

use nix::libc::IFLA_INFO_DATA;

use super::message::{Message, find_attr, u16_at, u32_at};
use crate::ip::{from_octets, octets};

/// The modes of a macvlan by the names that `ip` uses.
pub const MACVLAN_MODES: [(&str, u32); 4] = [("private", 1), ("vepa", 2), ("bridge", 4), ("passthru", 8)];
/// The modes of an ipvlan.
pub const IPVLAN_MODES: [(&str, u16); 3] = [("l2", 0), ("l3", 1), ("l3s", 2)];
/// The flags of an ipvlan: which of its siblings it reaches.
pub const IPVLAN_FLAGS: [(&str, u16); 3] = [("bridge", 0), ("private", 1), ("vepa", 2)];

const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7;
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_FLAGS: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_TUN_OWNER: u16 = 1;
const IFLA_TUN_GROUP: u16 = 2;
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;
/// `IFF_TAP`
const TAP: u8 = 2;

/// The attributes of the link's kind (`IFLA_INFO_DATA`) that we set and read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkData {
    /// Another kind of link, or no attributes.
    #[default]
    None,
    /// Of a macvlan.
    Macvlan {
        /// One of [`MACVLAN_MODES`].
        mode: u32,
        /// Length of the queue for broadcasts in packets, which all macvlans of a master share; 0 for the kernel's
        /// default.
        broadcast_queue: u32,
    },
    /// Of an ipvlan.
    Ipvlan {
        /// One of [`IPVLAN_MODES`].
        mode: u16,
        /// One of [`IPVLAN_FLAGS`].
        flags: u16,
    },
    /// Of a tap device. The kernel only reports these; [`crate::tun`] sets them.
    Tap {
        /// The user who may open it; `None` for everybody with `CAP_NET_ADMIN`.
        owner: Option<u32>,
        /// The group that may open it.
        group: Option<u32>,
        /// Whether it can be opened several times.
        multi_queue: bool,
    },
    /// Of an 802.1Q VLAN device.
    Vlan {
        /// The VLAN ID.
        id: u16,
    },
    /// Of a VXLAN.
    Vxlan {
        /// The VXLAN network identifier (VNI).
        id: u32,
        /// The address that it sends from; `None` for the kernel's choice.
        local: Option<IpAddr>,
        /// The UDP port of all ends.
        port: u16,
        /// Whether it learns the addresses of the other ends from the packets.
        learning: bool,
    },
}

impl LinkData {
    /// Adds the attributes to `IFLA_LINKINFO`.
    pub(super) fn encode(self, info: Message) -> Message {
        match self {
            LinkData::None | LinkData::Tap { .. } => info,
            LinkData::Macvlan { mode, broadcast_queue } => info.nest(IFLA_INFO_DATA, |data| {
                let queue = (broadcast_queue != 0).then(|| broadcast_queue.to_ne_bytes());
                data.attr_u32(IFLA_MACVLAN_MODE, mode).attr_if(IFLA_MACVLAN_BC_QUEUE_LEN, queue)
            }),
            LinkData::Ipvlan { mode, flags } => info.nest(IFLA_INFO_DATA, |data| {
                let data = data.attr(IFLA_IPVLAN_MODE, &mode.to_ne_bytes());
                data.attr(IFLA_IPVLAN_FLAGS, &flags.to_ne_bytes())
            }),
            LinkData::Vlan { id } => {
                info.nest(IFLA_INFO_DATA, |data| data.attr(IFLA_VLAN_ID, &id.to_ne_bytes()))
            }
            LinkData::Vxlan { id, local, port, learning } => info.nest(IFLA_INFO_DATA, |data| {
                let data = data.attr_u32(IFLA_VXLAN_ID, id).attr(IFLA_VXLAN_PORT, &port.to_be_bytes());
                let data = data.attr(IFLA_VXLAN_LEARNING, &[u8::from(learning)]);
                let of = |local: IpAddr| if local.is_ipv4() { IFLA_VXLAN_LOCAL } else { IFLA_VXLAN_LOCAL6 };
                local.into_iter().fold(data, |data, local| data.attr(of(local), &octets(local)))
            }),
        }
    }

    /// What a link must have that is asked for with these attributes and has `present`: owner and group of a tap device may be any if
    /// none is asked for.
    #[must_use]
    pub fn completed_by(self, present: LinkData) -> LinkData {
        match (self, present) {
            (
                LinkData::Tap { owner, group, multi_queue },
                LinkData::Tap { owner: user, group: users, .. },
            ) => LinkData::Tap { owner: owner.or(user), group: group.or(users), multi_queue },
            (wanted, _) => wanted,
        }
    }

    /// Decodes `IFLA_INFO_DATA` of a link of this kind.
    pub(super) fn parse(kind: &str, data: &[u8]) -> Self {
        let u32 = |kind| find_attr(data, kind).map_or(0, |value| u32_at(value, 0));
        let u16 = |kind| find_attr(data, kind).map_or(0, |value| u16_at(value, 0));
        match kind {
            "macvlan" => LinkData::Macvlan {
                mode: u32(IFLA_MACVLAN_MODE),
                broadcast_queue: u32(IFLA_MACVLAN_BC_QUEUE_LEN),
            },
            "ipvlan" => LinkData::Ipvlan { mode: u16(IFLA_IPVLAN_MODE), flags: u16(IFLA_IPVLAN_FLAGS) },
            "vlan" => LinkData::Vlan { id: u16(IFLA_VLAN_ID) },
            "vxlan" => LinkData::Vxlan {
                id: u32(IFLA_VXLAN_ID),
                local: [IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6]
                    .into_iter()
                    .find_map(|kind| from_octets(find_attr(data, kind)?)),
                port: u16::from_be(u16(IFLA_VXLAN_PORT)),
                learning: find_attr(data, IFLA_VXLAN_LEARNING) != Some(&[0]),
            },
            "tun" if find_attr(data, IFLA_TUN_TYPE) == Some(&[TAP]) => LinkData::Tap {
                owner: find_attr(data, IFLA_TUN_OWNER).map(|value| u32_at(value, 0)),
                group: find_attr(data, IFLA_TUN_GROUP).map(|value| u32_at(value, 0)),
                multi_queue: find_attr(data, IFLA_TUN_MULTI_QUEUE) == Some(&[1]),
            },
            _ => LinkData::None,
        }
    }
}

/// Mode or VLAN ID, as in `mode bridge`: what makes two links of one kind different. The length of a queue does not.
impl fmt::Display for LinkData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkData::None => f.write_str("no mode"),
            LinkData::Macvlan { mode, .. } => write!(f, "mode {}", name(&MACVLAN_MODES, *mode)),
            LinkData::Ipvlan { mode, flags } => {
                write!(f, "mode {} {}", name(&IPVLAN_MODES, *mode), name(&IPVLAN_FLAGS, *flags))
            }
            LinkData::Vlan { id } => write!(f, "VLAN ID {id}"),
            LinkData::Vxlan { id, local, port, learning } => {
                let local = local.map_or_else(|| "any".to_owned(), |local| local.to_string());
                let learns = if *learning { "" } else { " without learning" };
                write!(f, "VXLAN ID {id} port {port} local {local}{learns}")
            }
            LinkData::Tap { owner, group, multi_queue } => {
                let text = |id: &Option<u32>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
                let queues = if *multi_queue { "several queues" } else { "one queue" };
                write!(f, "mode tap, owner {}, group {}, {queues}", text(owner), text(group))
            }
        }
    }
}

fn name<T: Copy + PartialEq + fmt::Display>(names: &[(&str, T)], number: T) -> String {
    let found = names.iter().find(|(_, known)| *known == number);
    found.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::message::find_attr;
    use super::*;

    #[test]
    fn encoded_data_is_decoded_and_named() {
        for (kind, data, text) in [
            ("macvlan", LinkData::Macvlan { mode: 8, broadcast_queue: 7 }, "mode passthru"),
            ("macvlan", LinkData::Macvlan { mode: 16, broadcast_queue: 0 }, "mode 16"),
            ("ipvlan", LinkData::Ipvlan { mode: 2, flags: 1 }, "mode l3s private"),
            ("vlan", LinkData::Vlan { id: 4094 }, "VLAN ID 4094"),
            (
                "vxlan",
                LinkData::Vxlan { id: 7, local: Some([192, 0, 2, 1].into()), port: 4789, learning: false },
                "VXLAN ID 7 port 4789 local 192.0.2.1 without learning",
            ),
            (
                "vxlan",
                LinkData::Vxlan { id: 7, local: None, port: 8472, learning: true },
                "VXLAN ID 7 port 8472 local any",
            ),
        ] {
            let bytes = data.encode(Message::new(0, 0, &[])).finish(0, 0).unwrap();
            let encoded = find_attr(&bytes[16..], IFLA_INFO_DATA).unwrap();
            assert_eq!(LinkData::parse(kind, encoded), data);
            assert_eq!(data.to_string(), text);
        }
    }
}

//! The settings of virtual functions (SR-IOV), which the kernel keeps with the link of the physical function.
//!
//! # References
//! linux/if_link.h: `IFLA_VF_*`; `rtnl_fill_vfinfo` and `do_setvfinfo` in net/core/rtnetlink.c.

use std::fmt;

use nix::libc::{IFLA_EXT_MASK, IFLA_VFINFO_LIST, RTM_GETLINK, RTM_SETLINK};

use super::error::Error;
use super::ifinfo::{IFINFO, SKIP_STATS, ifinfo};
use super::message::{Message, attrs, find_attr, u16_at, u32_at};
use super::socket::Socket;

/// `RTEXT_FILTER_VF`: the answer has the virtual functions.
const WITH_VFS: u32 = 1 << 0;
/// Room for an answer with as many virtual functions as an attribute can have, and for what else a link has.
const ANSWER: usize = 80 * 1024;

const IFLA_VF_INFO: u16 = 1;
const IFLA_VF_SPOOFCHK: u16 = 4;
const IFLA_VF_LINK_STATE: u16 = 5;
const IFLA_VF_RATE: u16 = 6;
const IFLA_VF_TRUST: u16 = 9;
const IFLA_VF_VLAN_LIST: u16 = 12;
const IFLA_VF_VLAN_INFO: u16 = 1;

/// `ETH_P_8021Q`, the usual protocol of a VLAN.
pub const DOT1Q: u16 = 0x8100;
/// `ETH_P_8021AD`
pub const DOT1AD: u16 = 0x88a8;
/// The states of a link by the names that `ip` uses (`IFLA_VF_LINK_STATE_*`).
pub const LINK_STATES: [(&str, u32); 3] = [("auto", 0), ("enable", 1), ("disable", 2)];

/// One setting of a virtual function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The VLAN that the NIC adds to its frames.
    Vlan {
        /// The VLAN ID; 0 for none.
        id: u32,
        /// The priority, 0 to 7.
        qos: u32,
        /// [`DOT1Q`] or [`DOT1AD`].
        proto: u16,
    },
    /// How fast it sends, in Mbit/s; 0 for no limit.
    Rate {
        /// The guaranteed rate.
        min: u32,
        /// The limit.
        max: u32,
    },
    /// Whether the NIC drops frames with another source address.
    SpoofCheck(bool),
    /// Whether it may change what concerns others, such as promiscuous mode.
    Trust(bool),
    /// One of [`LINK_STATES`].
    LinkState(u32),
}

impl Setting {
    /// The setting as numbers, for a file: the attribute's type and up to three values.
    pub fn numbers(self) -> [u32; 4] {
        match self {
            Setting::Vlan { id, qos, proto } => [IFLA_VF_VLAN_LIST.into(), id, qos, proto.into()],
            Setting::Rate { min, max } => [IFLA_VF_RATE.into(), min, max, 0],
            Setting::SpoofCheck(on) => [IFLA_VF_SPOOFCHK.into(), on.into(), 0, 0],
            Setting::Trust(on) => [IFLA_VF_TRUST.into(), on.into(), 0, 0],
            Setting::LinkState(state) => [IFLA_VF_LINK_STATE.into(), state, 0, 0],
        }
    }

    /// The setting with these [`Setting::numbers`]. `None` for an unknown one, and for a switch that the driver does not have: the
    /// kernel then reports -1.
    pub fn of_numbers([kind, first, second, third]: [u32; 4]) -> Option<Setting> {
        let switch = || if first == u32::MAX { None } else { Some(first != 0) };
        match u16::try_from(kind).ok()? {
            IFLA_VF_VLAN_LIST => {
                Some(Setting::Vlan { id: first, qos: second, proto: u16::try_from(third).ok()? })
            }
            IFLA_VF_RATE => Some(Setting::Rate { min: first, max: second }),
            IFLA_VF_SPOOFCHK => switch().map(Setting::SpoofCheck),
            IFLA_VF_TRUST => switch().map(Setting::Trust),
            IFLA_VF_LINK_STATE => Some(Setting::LinkState(first)),
            _ => None,
        }
    }

    /// Whether both are values of the same setting.
    pub fn is_like(self, other: Setting) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// A request that gives the setting to the virtual function `vf` of the link with the index `pf`.
    pub fn request(self, pf: u32, vf: u32) -> Message {
        let [kind, first, second, third] = self.numbers();
        let kind = u16::try_from(kind).unwrap_or_default();
        let numbers = |numbers: &[u32]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_ne_bytes()).collect() };
        Message::new(RTM_SETLINK, 0, &ifinfo(0, pf, 0, 0)).nest(IFLA_VFINFO_LIST, |list| {
            list.nest(IFLA_VF_INFO, |info| match self {
                Setting::Vlan { .. } => info.nest(kind, |vlans| {
                    let proto = u16::try_from(third).unwrap_or_default().to_be_bytes();
                    let vlan = [numbers(&[vf, first, second]), proto.to_vec(), vec![0; 2]];
                    vlans.attr(IFLA_VF_VLAN_INFO, &vlan.concat())
                }),
                Setting::Rate { .. } => info.attr(kind, &numbers(&[vf, first, second])),
                _ => info.attr(kind, &numbers(&[vf, first])),
            })
        })
    }
}

/// Such as `VLAN 100, priority 3`.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switch = |on: bool| if on { "on" } else { "off" };
        match self {
            Setting::Vlan { id, qos, proto: DOT1AD } => write!(f, "VLAN {id} of 802.1ad, priority {qos}"),
            Setting::Vlan { id, qos, .. } => write!(f, "VLAN {id}, priority {qos}"),
            Setting::Rate { min, max } => write!(f, "minimum {min}, maximum {max} Mbit/s"),
            Setting::SpoofCheck(on) => write!(f, "spoof check {}", switch(*on)),
            Setting::Trust(on) => write!(f, "trust {}", switch(*on)),
            Setting::LinkState(state) => {
                let name = LINK_STATES.iter().find(|(_, number)| number == state);
                write!(f, "link state {}", name.map_or("unknown", |(name, _)| name))
            }
        }
    }
}

/// A request for a link with its virtual functions.
pub fn get(pf: u32) -> Message {
    let request = Message::new(RTM_GETLINK, 0, &ifinfo(0, pf, 0, 0));
    request.attr_u32(IFLA_EXT_MASK, SKIP_STATS | WITH_VFS).one_answer()
}

/// The settings of the virtual function `vf` in the answer to [`get`]. `None` if the link has no such function.
pub fn parse(body: &[u8], vf: u32) -> Option<Vec<Setting>> {
    let list = find_attr(body.get(IFINFO..)?, IFLA_VFINFO_LIST)?;
    // Each attribute begins with the number of the function.
    let is_it = |(_, info): &(u16, &[u8])| {
        attrs(info).any(|(kind, value)| kind == IFLA_VF_LINK_STATE && u32_at(value, 0) == vf)
    };
    let (_, info) = attrs(list).find(is_it)?;
    let setting = |(kind, value): (u16, &[u8])| {
        let numbers = |value: &[u8], third| [u32::from(kind), u32_at(value, 4), u32_at(value, 8), third];
        Setting::of_numbers(if kind == IFLA_VF_VLAN_LIST {
            let vlan = find_attr(value, IFLA_VF_VLAN_INFO)?;
            numbers(vlan, u16::from_be(u16_at(vlan, 12)).into())
        } else {
            numbers(value, 0)
        })
    };
    Some(attrs(info).filter_map(setting).collect())
}

impl Socket {
    /// The settings of the virtual function `vf` of the link with the index `pf`. `None` if it has no such function.
    pub fn vf(&mut self, pf: u32, vf: u32) -> Result<Option<Vec<Setting>>, Error> {
        self.make_room(ANSWER);
        Ok(self.request(get(pf))?.first().and_then(|body| parse(body, vf)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's answers have the layout of the requests.
    #[test]
    fn settings_that_are_set_are_read() {
        for (setting, text) in [
            (Setting::Vlan { id: 100, qos: 3, proto: DOT1Q }, "VLAN 100, priority 3"),
            (Setting::Vlan { id: 5, qos: 0, proto: DOT1AD }, "VLAN 5 of 802.1ad, priority 0"),
            (Setting::Rate { min: 10, max: 200 }, "minimum 10, maximum 200 Mbit/s"),
            (Setting::SpoofCheck(false), "spoof check off"),
            (Setting::Trust(true), "trust on"),
            (Setting::LinkState(2), "link state disable"),
        ] {
            assert_eq!(setting.to_string(), text);
            assert_eq!(Setting::of_numbers(setting.numbers()), Some(setting));
            let sent = setting.request(3, 7).finish(0, 0).unwrap();
            let list = find_attr(&sent[16 + IFINFO..], IFLA_VFINFO_LIST).unwrap();
            let info = find_attr(list, IFLA_VF_INFO).unwrap();
            let state = [7u32.to_ne_bytes(), 2u32.to_ne_bytes()].concat();
            let described = Message::new(0, 0, &[0; IFINFO]).nest(IFLA_VFINFO_LIST, |list| {
                let other = list.nest(IFLA_VF_INFO, |info| info.attr(IFLA_VF_LINK_STATE, &[0; 8]));
                other.nest(IFLA_VF_INFO, |own| own.attrs_in(info, &[]).attr(IFLA_VF_LINK_STATE, &state))
            });
            let body = described.finish(0, 0).unwrap().split_off(16);
            assert!(parse(&body, 7).unwrap().contains(&setting), "{setting}");
            assert_eq!(parse(&body, 0), Some(vec![Setting::LinkState(0)]));
            assert_eq!(parse(&body, 1), None);
        }
    }

    #[test]
    fn a_switch_that_the_driver_does_not_have_is_no_setting() {
        assert_eq!(Setting::of_numbers([IFLA_VF_TRUST.into(), u32::MAX, 0, 0]), None);
        assert_eq!(Setting::of_numbers([99, 1, 0, 0]), None);
    }
}

//! `struct ifinfomsg`, the header of link messages, and the numbers of their attributes.
//!
//! # References
//! linux/if_link.h, linux/rtnetlink.h; rtnetlink(7).

pub(super) use nix::libc::{RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK};

pub(super) const RTM_NEWLINKPROP: u16 = 108;
pub(super) const RTM_DELLINKPROP: u16 = 109;

/// `RTEXT_FILTER_SKIP_STATS`: omit the counters, which we do not read.
pub(super) const SKIP_STATS: u32 = 1 << 3;

/// `IFF_UP`
pub const IFF_UP: u32 = 0x1;
/// `IFF_LOOPBACK`
pub const IFF_LOOPBACK: u32 = 0x8;
/// `IFF_NOARP`: the link asks for no neighbours (`arp off`).
pub const IFF_NOARP: u32 = 0x80;
/// `IFF_PROMISC`
pub const IFF_PROMISC: u32 = 0x100;
/// `IFF_ALLMULTI`
pub const IFF_ALLMULTI: u32 = 0x200;
/// `IF_OPER_UP`
pub const OPER_UP: u8 = 6;

/// Length of `struct ifinfomsg`.
pub(super) const IFINFO: usize = 16;

/// Encodes `struct ifinfomsg`. `change` has the flags that `flags` sets or removes.
pub(super) fn ifinfo(family: u8, index: u32, flags: u32, change: u32) -> [u8; IFINFO] {
    let mut header = [0; IFINFO];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

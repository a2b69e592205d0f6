//! Moves links to another network namespace, and renames them.
//!
//! # References
//! linux/if_link.h; `do_setlink` in net/core/rtnetlink.c.

use std::os::fd::BorrowedFd;

use nix::libc::{IFLA_IFNAME, IFLA_NET_NS_FD};

use super::ifinfo::{RTM_NEWLINK, ifinfo};
use super::message::Message;
use crate::netns;

pub use super::ifb::set_alias;

/// A request that renames the link with this index. `EEXIST` if the name is taken; `EBUSY` if the link is up and the
/// kernel is older than 6.2.
pub fn rename(index: u32, name: &str) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).attr_text(IFLA_IFNAME, name)
}

/// A request that moves the link with this index to `netns` and names it there. The kernel sets the link down, removes
/// its addresses, routes and sysctls, and keeps its alias, MTU and hardware address. It keeps the index if that is free.
///
/// `EEXIST` if the new name is taken. If the link's present name is free there, the link has then moved under its present
/// name; otherwise it has not moved.
pub fn move_to(index: u32, netns: BorrowedFd<'_>, name: &str) -> Message {
    rename(index, name).attr_u32(IFLA_NET_NS_FD, netns::number(netns))
}

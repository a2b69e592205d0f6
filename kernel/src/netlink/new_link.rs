//! Requests that make links.
//!
//! # References
//! linux/if_link.h; rtnetlink(7).

use std::os::fd::BorrowedFd;

use nix::libc::{
    IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MASTER,
    IFLA_MTU, IFLA_NET_NS_FD, IFLA_NUM_RX_QUEUES, IFLA_NUM_TX_QUEUES,
};

use super::ifinfo::{RTM_NEWLINK, ifinfo};
use super::link_data::LinkData;
use super::mac::Mac;
use super::message::{F_CREATE, F_EXCL, Message};
use crate::netns;

const VETH_INFO_PEER: u16 = 1;
const IFLA_NETKIT_PEER_INFO: u16 = 1;
const IFLA_NETKIT_MODE: u16 = 5;
/// `NETKIT_L2`: the ends have MAC addresses, like those of a veth.
const NETKIT_L2: u32 = 0;

/// A link to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewLink<'a> {
    /// Its kind, such as `veth` or `bridge`.
    pub kind: &'a str,
    /// Its name; empty for the kernel's choice.
    pub name: &'a str,
    /// Its hardware address; `None` for the kernel's choice.
    pub mac: Option<Mac>,
    /// Its MTU in bytes; 0 for the kernel's default.
    pub mtu: u32,
    /// Its flags (`IFF_*`).
    pub flags: u32,
    /// Its index; 0 for the kernel's choice.
    pub index: u32,
    /// The index of the link that it is made on, in the namespace of the socket.
    pub parent: Option<u32>,
    /// The attributes of its kind.
    pub data: LinkData,
    /// The index of its master, such as the bridge that has this link as a port.
    pub master: Option<u32>,
    /// The namespace to make it in; `None` for the namespace of the socket.
    pub netns: Option<BorrowedFd<'a>>,
}

impl NewLink<'_> {
    /// A request that makes the link; `EEXIST` if the namespace has a link of this name.
    pub fn request(&self) -> Message {
        self.request_with(|info| self.data.encode(info))
    }

    /// `data` adds the attributes of the kind (`IFLA_INFO_DATA`).
    pub(super) fn request_with(&self, data: impl FnOnce(Message) -> Message) -> Message {
        let header = ifinfo(0, self.index, self.flags, self.flags);
        let message = self.attributes(Message::new(RTM_NEWLINK, F_CREATE | F_EXCL, &header));
        message.nest(IFLA_LINKINFO, |info| data(info.attr_text(IFLA_INFO_KIND, self.kind)))
    }

    fn attributes(&self, message: Message) -> Message {
        let message = if self.name.is_empty() { message } else { message.attr_text(IFLA_IFNAME, self.name) };
        message
            .attr_if(IFLA_ADDRESS, self.mac.map(|mac| mac.0))
            .attr_if(IFLA_MTU, (self.mtu != 0).then(|| self.mtu.to_ne_bytes()))
            .attr_if(IFLA_LINK, self.parent.map(u32::to_ne_bytes))
            .attr_if(IFLA_MASTER, self.master.map(u32::to_ne_bytes))
            .attr_if(IFLA_NET_NS_FD, self.netns.map(|netns| netns::number(netns).to_ne_bytes()))
    }
}

/// A request that makes a veth pair. `EEXIST` if either name is taken.
///
/// Each end gets one queue for each direction. Without a number, Linux 5.17 and later allocate one for each possible
/// CPU, and then disable all but one, which takes two RCU grace periods.
pub fn new_veth(end: &NewLink<'_>, peer: &NewLink<'_>) -> Message {
    let one_queue =
        |message: Message| message.attr_u32(IFLA_NUM_TX_QUEUES, 1).attr_u32(IFLA_NUM_RX_QUEUES, 1);
    let peer = |data| peer_info(data, VETH_INFO_PEER, peer, one_queue);
    one_queue(end.request_with(|info| info.nest(IFLA_INFO_DATA, peer)))
}

/// A request that makes a netkit pair with MAC addresses. `end` must be in the namespace of the socket. `EEXIST` if
/// either name is taken, `EOPNOTSUPP` if the kernel has no netkit.
pub fn new_netkit(end: &NewLink<'_>, peer: &NewLink<'_>) -> Message {
    let peer = |data| peer_info(data, IFLA_NETKIT_PEER_INFO, peer, |peer| peer);
    end.request_with(|info| {
        info.nest(IFLA_INFO_DATA, |data| peer(data).attr_u32(IFLA_NETKIT_MODE, NETKIT_L2))
    })
}

/// Describes the other end of a pair. `more` adds further attributes of it.
fn peer_info(data: Message, kind: u16, peer: &NewLink<'_>, more: impl Fn(Message) -> Message) -> Message {
    let header = ifinfo(0, 0, peer.flags, peer.flags);
    data.nest_behind(kind, &header, |message| more(peer.attributes(message)))
}

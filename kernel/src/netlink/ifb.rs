//! Intermediate functional block (IFB) devices: links that queue packets that another link has received.
//!
//! # References
//! drivers/net/ifb.c.

use nix::errno::Errno;
use nix::libc::{IFLA_IFALIAS, IFLA_MTU, IFLA_TXQLEN};

use super::ifinfo::{IFF_UP, RTM_NEWLINK, ifinfo};
use super::mac::Mac;
use super::message::Message;
use super::new_link::NewLink;
use super::socket::Answer;

/// The link kind of an IFB.
pub const KIND: &str = "ifb";
/// The longest link alias in bytes: `IFALIASZ` minus the terminating zero.
pub const MAX_ALIAS: usize = 255;

/// A request that makes an IFB that is down, with an MTU in bytes and a transmit queue length of 0, so that its
/// only queue is the qdisc that the caller adds. `EEXIST` if a link of that name exists. The kernel cannot change its hardware
/// address later.
pub fn create(name: &str, mtu: u32, mac: Option<Mac>) -> Message {
    let ifb = NewLink { kind: KIND, name, mtu, mac, ..NewLink::default() };
    ifb.request().attr_u32(IFLA_TXQLEN, 0)
}

/// A request that sets a link up and sets its MTU in bytes.
pub fn set_up(index: u32, mtu: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, IFF_UP, IFF_UP)).attr_u32(IFLA_MTU, mtu)
}

/// A request that sets the alias of a link. The kernel ignores an alias in the request that makes the link.
pub fn set_alias(index: u32, alias: &str) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).attr(IFLA_IFALIAS, alias.as_bytes())
}

/// A request for a link of this kind with an invalid hardware address. It always fails; [`is_unknown_kind`]
/// of the answer says whether the kernel supports the kind.
pub fn probe(kind: &str) -> Message {
    NewLink { kind, mac: Some(Mac([0xff; 6])), ..NewLink::default() }.request()
}

/// Whether the answer to [`probe`] means that the kernel does not have the kind of link and cannot load its
/// module.
pub fn is_unknown_kind(answer: &Answer) -> bool {
    matches!(answer, Err(error) if error.errno == Errno::EOPNOTSUPP)
}

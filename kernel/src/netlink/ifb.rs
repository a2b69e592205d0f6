//! Intermediate functional block (IFB) devices: links that queue packets that another link has received.
//!
//! # References
//! drivers/net/ifb.c.

use super::error::Error;
use super::link::{
    self, IFF_UP, IFLA_EXT_MASK, IFLA_IFALIAS, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MTU, Link, NewLink,
    RTM_GETLINK, RTM_NEWLINK, SKIP_STATS, ifinfo,
};
use super::mac::Mac;
use super::message::{F_DUMP, Message};
use super::socket::{Answer, Socket};
use nix::errno::Errno;

const IFLA_TXQLEN: u16 = 13;

/// The link kind of an IFB.
pub const KIND: &str = "ifb";
/// The longest link alias in bytes: `IFALIASZ` minus the terminating zero.
pub const MAX_ALIAS: usize = 255;

/// A request that makes an IFB that is down, with an MTU in bytes and a transmit queue length of 0, so that its
/// only queue is the qdisc that the caller adds. `EEXIST` if a link of that name exists.
pub fn create(name: &str, mtu: u32) -> Message {
    let ifb = NewLink { kind: KIND, name, mtu, ..NewLink::default() };
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
/// of the answer tells whether the kernel supports the kind.
pub fn probe(kind: &str) -> Message {
    NewLink { kind, mac: Some(Mac([0xff; 6])), ..NewLink::default() }.request()
}

/// Whether the answer to [`probe`] means that the kernel does not have the kind of link and cannot load its
/// module.
pub fn is_unknown_kind(answer: &Answer) -> bool {
    matches!(answer, Err(error) if error.errno == Errno::EOPNOTSUPP)
}

/// A request for all links of the namespace, or only for those of one kind.
pub fn list(kind: Option<&str>) -> Message {
    let all = Message::new(RTM_GETLINK, F_DUMP, &ifinfo(0, 0, 0, 0)).attr_u32(IFLA_EXT_MASK, SKIP_STATS);
    match kind {
        Some(kind) => all.nest(IFLA_LINKINFO, |info| info.attr_text(IFLA_INFO_KIND, kind)),
        None => all,
    }
}

impl Socket {
    /// All links of the namespace, or only those of one kind.
    pub fn links(&mut self, kind: Option<&str>) -> Result<Vec<Link>, Error> {
        let bodies = self.request(list(kind))?;
        let links = bodies.iter().map(|body| link::parse(body));
        // Kernels before 4.6 ignore the kind and dump all links.
        Ok(links.filter(|link| kind.is_none_or(|kind| link.kind == kind)).collect())
    }
}

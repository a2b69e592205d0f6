//! Intermediate functional blocks: links that queue what another link has received.
//!
//! # References
//! drivers/net/ifb.c.

use super::link::{
    self, IFF_UP, IFLA_EXT_MASK, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MTU, Link,
    RTM_GETLINK, RTM_NEWLINK, SKIP_STATS, ifinfo,
};
use super::message::{F_CREATE, F_DUMP, F_EXCL, Message};
use super::socket::{Answer, Error, Socket};
use nix::errno::Errno;

const IFLA_ADDRESS: u16 = 1;
const IFLA_TXQLEN: u16 = 13;

/// The kind of link.
pub const KIND: &str = "ifb";
/// The longest alias in bytes (`IFALIASZ` less the terminating zero).
pub const MAX_ALIAS: usize = 255;

/// Makes one that is up, with this MTU in bytes and no queue but the one that it is given; a link of that name is `EEXIST`.
pub fn create(name: &str, mtu: u32) -> Message {
    Message::new(RTM_NEWLINK, F_CREATE | F_EXCL, &ifinfo(0, 0, IFF_UP, IFF_UP))
        .attr_text(IFLA_IFNAME, name)
        .attr_u32(IFLA_MTU, mtu)
        .attr_u32(IFLA_TXQLEN, 0)
        .nest(IFLA_LINKINFO, |info| info.attr_text(IFLA_INFO_KIND, KIND))
}

/// Sets a link up and gives it this MTU in bytes.
pub fn set_up(index: u32, mtu: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, IFF_UP, IFF_UP)).attr_u32(IFLA_MTU, mtu)
}

/// Sets a link's alias. The kernel ignores one that comes with the request that makes the link.
pub fn set_alias(index: u32, alias: &str) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).attr(IFLA_IFALIAS, alias.as_bytes())
}

/// A request for a link of this kind that fails in any case, because of a hardware address that no link may have: the answer
/// tells whether the kernel knows the kind, see [`is_unknown_kind`].
pub fn probe(kind: &str) -> Message {
    Message::new(RTM_NEWLINK, F_CREATE | F_EXCL, &ifinfo(0, 0, 0, 0))
        .attr(IFLA_ADDRESS, &[0xff; 6])
        .nest(IFLA_LINKINFO, |info| info.attr_text(IFLA_INFO_KIND, kind))
}

/// Whether an answer says that the kernel does not have the kind of link, and cannot load it.
pub fn is_unknown_kind(answer: &Answer) -> bool {
    matches!(answer, Err(error) if error.errno == Errno::EOPNOTSUPP)
}

impl Socket {
    /// All links, or those of one kind.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn links(&mut self, kind: Option<&str>) -> Result<Vec<Link>, Error> {
        let mut request =
            Message::new(RTM_GETLINK, F_DUMP, &ifinfo(0, 0, 0, 0)).attr_u32(IFLA_EXT_MASK, SKIP_STATS);
        if let Some(kind) = kind {
            request = request.nest(IFLA_LINKINFO, |info| info.attr_text(IFLA_INFO_KIND, kind));
        }
        let bodies = self.request(request)?;
        let links = bodies.iter().map(|body| link::parse(body));
        // A kernel before 4.6 does not choose by kind.
        Ok(links.filter(|link| kind.is_none_or(|kind| link.kind == kind)).collect())
    }
}

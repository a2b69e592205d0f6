//! Settings of links and namespaces that are sysctls below net/ipv4/conf and net/ipv6/conf too. /proc/sys finds a file by a walk
//! over the entries of that name of all namespaces: 0.2 µs for each pod of the node. Netlink does not.
//!
//! # References
//! linux/ip.h and linux/ipv6.h (`DEVCONF_*`), linux/if_link.h, linux/netconf.h.

use nix::errno::Errno;
use nix::libc::IFLA_AF_SPEC;

use super::error::Error;
use super::ifinfo::{RTM_NEWLINK, ifinfo};
use super::message::{Message, find_attr, u32_at};
use super::socket::{Answer, Socket};
use crate::ip::IpFamily;

const RTM_GETNETCONF: u16 = 82;
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
/// `NETCONFA_IFINDEX_ALL`: the settings under `all`.
const ALL: i32 = -1;
/// Length of `struct netconfmsg`, padded.
const NETCONF: usize = 4;

const AF_INET: u16 = IpFamily::V4.number() as u16;
const AF_INET6: u16 = IpFamily::V6.number() as u16;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
/// `IN6_ADDR_GEN_MODE_NONE`
const NO_ADDRESS: u8 = 1;

/// `IPV4_DEVCONF_ARP_NOTIFY`
const ARP_NOTIFY: u16 = 22;
/// `IPV4_DEVCONF_ARP_IGNORE`, counted from 0 as in the kernel's answer.
const ARP_IGNORE: usize = 18;
/// `IPV4_DEVCONF_ROUTE_LOCALNET`, counted from 0 as in the kernel's answer.
const ROUTE_LOCALNET: usize = 25;
/// `DEVCONF_ACCEPT_RA`, which counts from 0.
const ACCEPT_RA: usize = 3;

/// A request that sets `arp_notify` of the link with this index: the kernel announces an IPv4 address when the link goes up.
pub fn set_arp_notify(index: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).nest(IFLA_AF_SPEC, |families| {
        families.nest(AF_INET, |inet| inet.nest(IFLA_INET_CONF, |conf| conf.attr_u32(ARP_NOTIFY, 1)))
    })
}

/// A request that keeps the kernel from giving the link with this index a link-local IPv6 address (`addr_gen_mode` none). It counts for
/// a link that is down. `EAFNOSUPPORT`: the link has no IPv6.
pub fn set_no_link_local(index: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).nest(IFLA_AF_SPEC, |families| {
        families.nest(AF_INET6, |inet6| inet6.attr(IFLA_INET6_ADDR_GEN_MODE, &[NO_ADDRESS]))
    })
}

/// Whether `route_localnet` is on, in the settings of a link for each address family.
pub(super) fn routes_localnet(families: &[u8]) -> bool {
    is_set(families, AF_INET, IFLA_INET_CONF, ROUTE_LOCALNET)
}

/// `arp_ignore`, in the settings of a link for each address family.
pub(super) fn arp_ignore(families: &[u8]) -> u32 {
    setting(families, AF_INET, IFLA_INET_CONF, ARP_IGNORE)
}

/// Whether `accept_ra` is not 0. A kernel without IPv6 has no such setting.
pub(super) fn accepts_ra(families: &[u8]) -> bool {
    is_set(families, AF_INET6, IFLA_INET6_CONF, ACCEPT_RA)
}

fn is_set(families: &[u8], family: u16, conf: u16, index: usize) -> bool {
    setting(families, family, conf, index) != 0
}

/// 0 if the kernel does not report the setting.
fn setting(families: &[u8], family: u16, conf: u16, index: usize) -> u32 {
    let settings = find_attr(families, family).and_then(|family| find_attr(family, conf));
    settings.map_or(0, |settings| u32_at(settings, 4 * index))
}

/// A request for the settings under `all`.
fn get_all(family: IpFamily) -> Message {
    Message::new(RTM_GETNETCONF, 0, &[family.number(), 0, 0, 0])
        .attr(NETCONFA_IFINDEX, &ALL.to_ne_bytes())
        .one_answer()
}

fn read_forwarding(answer: Answer) -> Result<bool, Error> {
    let bodies = answer?;
    let settings = bodies.first().and_then(|body| body.get(NETCONF..)).unwrap_or_default();
    let forwarding = find_attr(settings, NETCONFA_FORWARDING).ok_or_else(|| Error::from(Errno::ENODATA))?;
    Ok(u32_at(forwarding, 0) != 0)
}

impl Socket {
    /// Whether the namespace forwards packets: `net/ipv4/ip_forward` or `net/ipv6/conf/all/forwarding`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the kernel lacks the family.
    pub fn forwards(&mut self, family: IpFamily) -> Result<bool, Error> {
        read_forwarding(self.request(get_all(family)))
    }
}

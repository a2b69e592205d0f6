//! The messages of rtnetlink about changes of links, addresses, routes, qdiscs, filters and forwarding.
//!
//! # References
//! linux/rtnetlink.h: `RTNLGRP_*`; linux/netconf.h.

use nix::libc::{
    IFLA_PROTINFO, RTA_OIF, RTM_DELADDR, RTM_DELLINK, RTM_DELQDISC, RTM_DELROUTE, RTM_DELTFILTER,
    RTM_NEWLINK, TCA_KIND,
};

use super::bridge::{AF_BRIDGE, PortSettings};
use super::ifinfo::IFINFO;
use super::link::{self, Link};
use super::message::{Received, find_attr, text, u32_at};
use super::route::RTMSG;
use super::tc::attributes;

/// `RTNLGRP_LINK`, `RTNLGRP_TC`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_IFADDR`, `RTNLGRP_IPV6_ROUTE`,
/// `RTNLGRP_IPV4_NETCONF`, `RTNLGRP_IPV6_NETCONF`.
pub(crate) const GROUPS: [u32; 8] = [1, 4, 5, 7, 9, 11, 24, 25];

const RTM_NEWNETCONF: u16 = 80;
/// `NETCONFA_IFINDEX`
const NETCONF_INDEX: u16 = 1;
/// `NETCONFA_FORWARDING`
const NETCONF_FORWARDING: u16 = 2;
/// `NETCONFA_IFINDEX_ALL`, -1
const ALL_LINKS: u32 = u32::MAX;
/// Length of `struct netconfmsg`, with its padding.
const NETCONF: usize = 4;
/// Length of `struct ifaddrmsg`; its scope is at offset 3.
const ADDRESS: usize = 8;
/// `RT_SCOPE_LINK`
const SCOPE_LINK: u8 = 253;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A link is new or has changed.
    Link(Box<Link>),
    /// The settings of a bridge port may have changed.
    Port(u32, PortSettings),
    /// The link with this index is gone.
    LinkGone(u32),
    /// An address that is not link-local is gone from the link with this index.
    AddressGone(u32),
    /// A route through the link with this index is gone.
    RouteGone(u32),
    /// A qdisc of this kind, or a filter of it, is gone from the link with this index.
    ShapingGone(u32, String),
    /// The node forwards no packets of one family any more.
    ForwardingOff,
}

impl Notice {
    /// Decodes a message. `None` for all other changes.
    pub(crate) fn parse(message: &Received<'_>) -> Option<Notice> {
        let Received { kind, body, .. } = *message;
        let index = u32_at(body, 4);
        let is_port = body.first() == Some(&AF_BRIDGE);
        Some(match kind {
            RTM_NEWLINK if is_port => {
                let settings = find_attr(body.get(IFINFO..)?, IFLA_PROTINFO)?;
                Notice::Port(index, PortSettings::parse(settings))
            }
            RTM_NEWLINK => Notice::Link(Box::new(link::parse(body))),
            RTM_DELLINK if !is_port => Notice::LinkGone(index),
            RTM_DELADDR if body.len() >= ADDRESS && body[3] != SCOPE_LINK => Notice::AddressGone(index),
            RTM_DELROUTE => Notice::RouteGone(u32_at(find_attr(body.get(RTMSG..)?, RTA_OIF)?, 0)),
            RTM_DELQDISC | RTM_DELTFILTER => {
                Notice::ShapingGone(index, find_attr(attributes(body), TCA_KIND).map(text)?)
            }
            RTM_NEWNETCONF => {
                let number = |kind| find_attr(body.get(NETCONF..)?, kind).map(|value| u32_at(value, 0));
                let is_off =
                    number(NETCONF_INDEX) == Some(ALL_LINKS) && number(NETCONF_FORWARDING) == Some(0);
                return is_off.then_some(Notice::ForwardingOff);
            }
            _ => return None,
        })
    }
}

//! The addresses to which the node has a route of their own, as it has to each pod of `ptp`, and the node's own addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::message::{Received, u32_at};
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{LinkId, Socket, addr};
use ferrule_kernel::notices::Messages;
use ipnetwork::IpNetwork;
use nix::libc::{
    RTM_DELADDR, RTM_DELLINK, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK,
};

use crate::listener::Listener;

/// The length of `struct ifinfomsg`.
const IFINFO: usize = 16;
/// linux/if.h
const IFF_UP: u32 = 1;

/// The messages that it follows.
const GROUPS: [u32; 5] =
    [RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];

/// They follow the kernel's messages.
pub(super) struct Hosts {
    listener: Listener,
    socket: Socket,
    known: Known,
    has_news: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    /// Each with the index of its link.
    all: BTreeMap<IpAddr, u32>,
    /// The node's own ones, by the index of their link and with their prefixes.
    own: BTreeSet<(u32, IpNetwork)>,
}

impl Hosts {
    /// Needs a tokio runtime.
    pub(super) fn open() -> Result<Hosts> {
        let messages = Messages::of_route(&GROUPS).context("listen to changes of routes")?;
        let socket = Socket::route()?.with_whole_dumps();
        let mut hosts =
            Hosts { listener: Listener::new(messages)?, socket, known: Known::default(), has_news: true };
        hosts.read()?;
        Ok(hosts)
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.known.all.contains_key(&address)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.known.all.keys().copied()
    }

    /// The index of the link to the address.
    pub(super) fn link(&self, address: IpAddr) -> Option<u32> {
        self.known.all.get(&address).copied()
    }

    /// The name of a link, if it is there.
    pub(super) fn name(&mut self, index: u32) -> Result<Option<String>> {
        let link = self.socket.link(LinkId::Index(index)).context("read a link")?;
        Ok(link.map(|link| link.name))
    }

    /// Waits until there may be news. Safe to cancel.
    pub(super) async fn readable(&mut self) -> io::Result<()> {
        self.listener.readable().await
    }

    /// Takes the news.
    ///
    /// # Errors
    /// That of a system call, or the kernel refuses a list.
    pub(super) fn take(&mut self) -> Result<()> {
        let Hosts { listener, known, has_news, .. } = self;
        let mut is_lost = false;
        listener.receive(|message| {
            *has_news = true;
            match message {
                Some(message) => known.hear(message),
                None => is_lost = true,
            }
        })?;
        if is_lost { self.read() } else { Ok(()) }
    }

    /// Whether there are news since [`Hosts::follow`]: then the next round must follow.
    pub(super) fn has_news(&self) -> bool {
        self.has_news
    }

    /// The news are followed from now on. Returns whether there are any.
    pub(super) fn follow(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    fn read(&mut self) -> Result<()> {
        let mut known = Known::default();
        for family in IpFamily::ALL {
            let routes = self.socket.routes(family, MAIN_TABLE).context("read routes")?;
            known.all.extend(routes.iter().filter_map(host));
        }
        let own = self.socket.all_addresses().context("read addresses")?;
        known.own.extend(own.into_iter().map(|(index, address)| (index, address.network)));
        self.known = known;
        Ok(())
    }

    /// The node's own addresses. It asks for no list: that would wait behind all who change links, while many pods start for seconds.
    ///
    /// # Errors
    /// As [`Hosts::take`], which it calls: the kernel sends a message before the change returns to who makes it.
    pub(super) fn own(&mut self) -> Result<BTreeSet<IpAddr>> {
        self.take()?;
        Ok(self.known.own.iter().map(|(_, network)| network.ip()).collect())
    }

    pub(super) fn has_link(&mut self, name: &str) -> bool {
        !matches!(self.socket.link(LinkId::Name(name)), Ok(None))
    }
}

impl Known {
    fn hear(&mut self, message: &Received<'_>) {
        let route = || StoredRoute::parse(message.body).and_then(|route| host(&route));
        let own = || addr::parse(message.body).map(|one| (u32_at(message.body, 4), one.network));
        match message.kind {
            RTM_NEWROUTE => self.all.extend(route()),
            RTM_DELROUTE => drop(route().map(|(address, _)| self.all.remove(&address))),
            RTM_NEWADDR => self.own.extend(own()),
            RTM_DELADDR => drop(own().map(|one| self.own.remove(&one))),
            // The kernel removes the IPv4 routes of a link that goes or is down without a word. A message of a bridge is about a port.
            RTM_NEWLINK | RTM_DELLINK if message.body.first() == Some(&0) && message.body.len() >= IFINFO => {
                let (index, flags) = (u32_at(message.body, 4), u32_at(message.body, 8));
                let is_gone = message.kind == RTM_DELLINK;
                if is_gone || flags & IFF_UP == 0 {
                    self.all.retain(|_, link| *link != index);
                }
                if is_gone {
                    self.own.retain(|(link, _)| *link != index);
                }
            }
            _ => {}
        }
    }
}

fn host(route: &StoredRoute) -> Option<(IpAddr, u32)> {
    let is_host = route.dst.prefix() == route.family.bits() && route.is_unicast && route.gws.is_empty();
    (is_host && route.table == MAIN_TABLE).then_some((route.dst.ip(), *route.links.first()?))
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::netlink::Message;

    use super::*;

    #[test]
    fn an_address_is_the_nodes_own_while_a_link_has_it() {
        let network: IpNetwork = "10.1.0.1/32".parse().unwrap();
        let mut known = Known::default();
        let mut hear = |kind, message: Message| {
            let message = message.finish(0, 0).unwrap();
            let body = &message[16..];
            known.hear(&Received { kind, flags: 0, sequence: 0, port: 0, body });
            known.own.iter().map(|(index, _)| *index).collect::<Vec<u32>>()
        };
        assert_eq!(hear(RTM_NEWADDR, addr::add(3, network, 0)), [3]);
        assert_eq!(hear(RTM_NEWADDR, addr::add(3, network, 0)), [3]);
        // Each pod of `ptp` has the gateway on a link of its own.
        assert_eq!(hear(RTM_NEWADDR, addr::add(4, network, 0)), [3, 4]);
        assert_eq!(hear(RTM_DELADDR, addr::delete(3, network)), [4]);
        let link = [&[0; 4][..], &4_u32.to_ne_bytes(), &[0; 8]].concat();
        // A link that is down keeps its addresses.
        assert_eq!(hear(RTM_NEWLINK, Message::new(RTM_NEWLINK, 0, &link)), [4]);
        assert_eq!(hear(RTM_DELLINK, Message::new(RTM_DELLINK, 0, &link)), [] as [u32; 0]);
    }
}

//! The addresses to which the node has a route of their own, as it has to each pod of `ptp`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::message::{Received, u32_at};
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{LinkId, Socket};
use ferrule_kernel::notices::Messages;
use nix::libc::{
    RTM_DELLINK, RTM_DELROUTE, RTM_NEWLINK, RTM_NEWROUTE, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE,
    RTNLGRP_LINK,
};

use crate::listener::Listener;

/// The length of `struct ifinfomsg`.
const IFINFO: usize = 16;
/// linux/if.h
const IFF_UP: u32 = 1;

/// They follow the kernel's messages.
pub(super) struct Hosts {
    listener: Listener,
    socket: Socket,
    /// Each with the index of its link.
    all: BTreeMap<IpAddr, u32>,
}

impl Hosts {
    /// Needs a tokio runtime.
    pub(super) fn open() -> Result<Hosts> {
        let messages = Messages::of_route(&[RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE])
            .context("listen to changes of routes")?;
        let socket = Socket::route()?.with_whole_dumps();
        let mut hosts = Hosts { listener: Listener::new(messages)?, socket, all: BTreeMap::new() };
        hosts.read()?;
        Ok(hosts)
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.all.contains_key(&address)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.all.keys().copied()
    }

    /// The index of the link to the address.
    pub(super) fn link(&self, address: IpAddr) -> Option<u32> {
        self.all.get(&address).copied()
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
        let Hosts { listener, all, .. } = self;
        let mut is_lost = false;
        listener.receive(|message| match message {
            Some(message) => hear(all, message),
            None => is_lost = true,
        })?;
        if is_lost { self.read() } else { Ok(()) }
    }

    fn read(&mut self) -> Result<()> {
        self.all.clear();
        for family in IpFamily::ALL {
            let routes = self.socket.routes(family, MAIN_TABLE).context("read routes")?;
            self.all.extend(routes.iter().filter_map(host));
        }
        Ok(())
    }

    /// The node's own addresses.
    pub(super) fn own(&mut self) -> Result<BTreeSet<IpAddr>> {
        let all = self.socket.all_addresses().context("read addresses")?;
        Ok(all.into_iter().map(|(_, address)| address.network.ip()).collect())
    }

    pub(super) fn has_link(&mut self, name: &str) -> bool {
        !matches!(self.socket.link(LinkId::Name(name)), Ok(None))
    }
}

fn hear(all: &mut BTreeMap<IpAddr, u32>, message: &Received<'_>) {
    let route = || StoredRoute::parse(message.body).and_then(|route| host(&route));
    match message.kind {
        RTM_NEWROUTE => all.extend(route()),
        RTM_DELROUTE => drop(route().map(|(address, _)| all.remove(&address))),
        // The kernel removes the IPv4 routes of a link that goes or is down without a word. A message of a bridge is about a port.
        RTM_NEWLINK | RTM_DELLINK if message.body.first() == Some(&0) && message.body.len() >= IFINFO => {
            let (index, flags) = (u32_at(message.body, 4), u32_at(message.body, 8));
            if message.kind == RTM_DELLINK || flags & IFF_UP == 0 {
                all.retain(|_, link| *link != index);
            }
        }
        _ => {}
    }
}

fn host(route: &StoredRoute) -> Option<(IpAddr, u32)> {
    let is_host = route.dst.prefix() == route.family.bits() && route.is_unicast && route.gws.is_empty();
    (is_host && route.table == MAIN_TABLE).then_some((route.dst.ip(), *route.links.first()?))
}

//! The addresses to which the node has a route of their own, as it has to each pod of `ptp`.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{LinkId, Socket};
use ferrule_kernel::notices::Messages;
use nix::libc::{RTM_DELROUTE, RTM_NEWROUTE, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE};

use crate::listener::Listener;

/// They follow the kernel's messages.
pub(super) struct Hosts {
    listener: Listener,
    socket: Socket,
    all: BTreeSet<IpAddr>,
}

impl Hosts {
    /// Needs a tokio runtime.
    pub(super) fn open() -> Result<Hosts> {
        let messages = Messages::of_route(&[RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE])
            .context("listen to changes of routes")?;
        let socket = Socket::route()?.with_whole_dumps();
        let mut hosts = Hosts { listener: Listener::new(messages)?, socket, all: BTreeSet::new() };
        hosts.read()?;
        Ok(hosts)
    }

    pub(super) fn all(&self) -> &BTreeSet<IpAddr> {
        &self.all
    }

    /// Waits until there may be news. Safe to cancel.
    pub(super) async fn readable(&mut self) -> io::Result<()> {
        self.listener.readable().await
    }

    /// Takes the news. Returns whether a route is gone.
    pub(super) fn take(&mut self) -> Result<bool> {
        let Hosts { listener, all, .. } = self;
        let (mut is_lost, mut is_less) = (false, false);
        listener.receive(|message| {
            let Some(message) = message else {
                is_lost = true;
                return;
            };
            let is_new = match message.kind {
                RTM_NEWROUTE => true,
                RTM_DELROUTE => false,
                _ => return,
            };
            if let Some(address) = StoredRoute::parse(message.body).and_then(|route| host(&route)) {
                if is_new {
                    all.insert(address);
                } else {
                    is_less |= all.remove(&address);
                }
            }
        })?;
        if is_lost {
            self.read()?;
        }
        Ok(is_lost || is_less)
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

fn host(route: &StoredRoute) -> Option<IpAddr> {
    let is_host = route.dst.prefix() == route.family.bits() && route.is_unicast;
    (is_host && route.table == MAIN_TABLE && route.gws.is_empty()).then(|| route.dst.ip())
}

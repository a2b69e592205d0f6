//! The kernel's messages about links, addresses and routes.

use std::io;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::message::{Received, find_attr, u32_at};
use ferrule_kernel::netlink::stored_route::BY_KERNEL;
use ferrule_kernel::netlink::{Error, Socket, addr, link};
use ferrule_kernel::notices::Messages;
use ipnetwork::IpNetwork;
use nix::libc::{
    RTM_DELADDR, RTM_DELLINK, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNETCONF, RTM_NEWROUTE,
    RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_NETCONF,
    RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK,
};

use super::local::{Local, Route, is_link_local, no_ipv6};
use crate::listener::Listener;
use crate::names;

/// `AF_BRIDGE`: a message about a port of a bridge, not about a link.
const BRIDGE: u8 = 7;

/// Whether a route of another program to this destination can change a plan.
type Interest = Box<dyn Fn(IpNetwork) -> bool + Send>;

/// What [`Watch`] listens to.
const GROUPS: [u32; 7] = [
    RTNLGRP_LINK,
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_IPV4_NETCONF,
    RTNLGRP_IPV6_NETCONF,
];

/// Length of `struct netconfmsg` with its padding.
const NETCONF: usize = 4;
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
/// `NETCONFA_IFINDEX_ALL`: the setting of the node, not of a link.
const ALL: u32 = u32::MAX;

/// This node's links, addresses and routes, kept up to date by the kernel's messages.
pub struct Watch {
    messages: Listener,
    socket: Socket,
    local: Local,
    /// Where routes of other programs matter. `None`: everywhere.
    interest: Option<Interest>,
    /// The routes must be read anew.
    is_stale: bool,
    /// Everything must be read anew.
    is_lost: bool,
    /// A change that matters came after the last [`Watch::changed`] or [`Watch::begin`].
    has_news: bool,
    /// See [`Watch::take_damage`].
    is_damaged: bool,
}

impl Watch {
    /// Subscribes, then reads everything. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel refuses the subscription or a list.
    pub fn open() -> io::Result<Watch> {
        let messages = Listener::new(Messages::of_route(&GROUPS).map_err(io::Error::other)?)?;
        let mut socket = Socket::route().map_err(io::Error::other)?.with_whole_dumps();
        let local = Local::read(&mut socket).map_err(io::Error::other)?;
        Ok(Watch {
            messages,
            socket,
            local,
            interest: None,
            is_stale: false,
            is_lost: false,
            has_news: false,
            is_damaged: false,
        })
    }

    /// This node, as of the last [`Watch::refresh`].
    pub fn local(&self) -> &Local {
        &self.local
    }

    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// From now on, other programs' routes elsewhere cause no sync. Those that came before have.
    pub fn care(&mut self, interest: impl Fn(IpNetwork) -> bool + Send + 'static) {
        self.interest = Some(Box::new(interest));
    }

    /// Waits for a change that matters. Safe to cancel.
    ///
    /// # Errors
    /// The subscription broke.
    pub async fn changed(&mut self, pods: &[IpNetwork]) -> io::Result<()> {
        loop {
            self.take(pods)?;
            if std::mem::take(&mut self.has_news) {
                return Ok(());
            }
            self.messages.readable().await?;
        }
    }

    /// As [`Watch::refresh`], before a new plan: it takes all changes so far into account.
    pub fn begin(&mut self, pods: &[IpNetwork]) -> io::Result<()> {
        self.refresh(pods)?;
        self.local.no_ipv6 = no_ipv6();
        self.has_news = false;
        Ok(())
    }

    /// Applies the messages that have come, and reads again the lists that they leave unclear.
    ///
    /// # Errors
    /// The subscription broke, or the kernel refuses a list.
    pub fn refresh(&mut self, pods: &[IpNetwork]) -> io::Result<()> {
        self.take(pods)?;
        let read: Result<(), Error> = match (self.is_lost, self.is_stale) {
            (true, _) => Local::read(&mut self.socket).map(|local| self.local = local),
            (false, true) => self.local.read_routes(&mut self.socket),
            (false, false) => return Ok(()),
        };
        read.map_err(io::Error::other)?;
        (self.is_lost, self.is_stale) = (false, false);
        Ok(())
    }

    /// Notes that our request has replaced the route to a destination, or has removed it (`None`). The kernel's message about it is
    /// then no news.
    pub fn note(&mut self, dst: IpNetwork, route: Option<Route>) {
        let gone: Vec<Route> = match &route {
            Some(new) => self.local.to(dst).filter(|old| old.priority == new.priority).cloned().collect(),
            None => self.local.ours(dst).cloned().collect(),
        };
        for old in &gone {
            self.local.routes.remove(old);
        }
        self.local.routes.extend(route);
    }

    /// Whether an overlay's device, or one of its addresses, may have changed since the last call.
    pub fn take_damage(&mut self) -> bool {
        std::mem::take(&mut self.is_damaged)
    }

    /// Reads the routes anew at the next [`Watch::refresh`].
    pub fn distrust(&mut self) {
        self.is_stale = true;
    }

    fn take(&mut self, pods: &[IpNetwork]) -> io::Result<()> {
        let Watch { messages, local, interest, is_stale, is_lost, has_news, is_damaged, .. } = self;
        messages.receive(|message| {
            let effect = message.map(|message| apply(local, message, pods, interest.as_ref()));
            *is_lost |= effect.is_none();
            *is_stale |= matches!(effect, Some(Effect::Routes | Effect::Later | Effect::Device));
            *is_damaged |= matches!(effect, None | Some(Effect::Device));
            *has_news |= !matches!(effect, Some(Effect::None | Effect::Later));
        })
    }
}

/// What a message changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Nothing that matters.
    None,
    /// A route that no present podCIDR or node has to do with. The next sync reads the routes.
    Later,
    /// Links or addresses.
    Matters,
    /// A device of ours; the kernel may have removed its routes.
    Device,
    /// The routes must be read: the kernel sends no message for the routes that it removes with a link, and its message about a new
    /// route does not name the replaced one.
    Routes,
}

/// Applies a message. `pods`: this node's podCIDRs; routes and addresses in them belong to its pods.
fn apply(
    local: &mut Local,
    message: &Received<'_>,
    pods: &[IpNetwork],
    interest: Option<&Interest>,
) -> Effect {
    let body = message.body;
    match message.kind {
        RTM_NEWLINK if body.first() != Some(&BRIDGE) => {
            let new = link::parse(body);
            let (index, new) = (new.index, super::Link::from(new));
            let is_down = !new.is_up;
            match local.links.insert(index, new.clone()) {
                _ if is_ours(&new) => Effect::Device,
                Some(old) if old == new => Effect::None,
                Some(old) if old.master != new.master && was_last_port(local, &old) => Effect::Matters,
                _ if is_down && has_routes(local, index, pods) => Effect::Routes,
                // Such as a pod's link.
                _ if !has_routes(local, index, pods) && !has_addresses(local, index, pods) => Effect::None,
                _ => Effect::Matters,
            }
        }
        RTM_DELLINK if body.first() != Some(&BRIDGE) => {
            let index = u32_at(body, 4);
            let had_addresses = has_addresses(local, index, pods);
            local.addresses.retain(|(link, _)| *link != index);
            match local.links.remove(&index) {
                Some(old) if is_ours(&old) => Effect::Device,
                Some(_) if has_routes(local, index, pods) => Effect::Routes,
                Some(old) if had_addresses || was_last_port(local, &old) => Effect::Matters,
                _ => {
                    // Those to a pod.
                    local.routes.retain(|route| route.links != [index]);
                    Effect::None
                }
            }
        }
        RTM_NEWADDR | RTM_DELADDR => {
            let Some(address) = addr::parse(body).map(|address| address.network.ip()) else {
                return Effect::None;
            };
            if is_link_local(address) {
                return Effect::None;
            }
            let entry = (u32_at(body, 4), address);
            let is_new = match message.kind {
                RTM_NEWADDR => local.addresses.insert(entry),
                _ => local.addresses.remove(&entry),
            };
            let is_of_device = local.links.get(&entry.0).is_some_and(is_ours);
            match (is_new, is_of_pods(entry.1, pods)) {
                (false, _) => Effect::None,
                (true, _) if is_of_device => Effect::Device,
                (true, true) => Effect::None,
                // The kernel sends no message for the routes that it removes with an IPv4 address.
                (true, false) if message.kind == RTM_DELADDR => Effect::Routes,
                (true, false) => Effect::Matters,
            }
        }
        RTM_NEWROUTE | RTM_DELROUTE => {
            let Some(route) = Route::parse(body) else { return Effect::None };
            let is_known = local.routes.contains(&route) == (message.kind == RTM_NEWROUTE);
            let is_host = route.dst.prefix() == IpFamily::of(route.dst.ip()).bits();
            let is_usual = !route.is_ours() && (is_host || route.protocol == BY_KERNEL);
            if is_known || (is_usual && is_of_pods(route.dst.ip(), pods)) {
                Effect::None
            } else if !route.is_ours() && interest.is_some_and(|meets| !meets(route.dst)) {
                Effect::Later
            } else {
                Effect::Routes
            }
        }
        RTM_NEWNETCONF if is_forwarding_off(body) => Effect::Matters,
        _ => Effect::None,
    }
}

/// Whether this node has stopped to forward packets of a family.
fn is_forwarding_off(body: &[u8]) -> bool {
    let has = |kind, value| {
        let found = find_attr(body.get(NETCONF..).unwrap_or_default(), kind);
        found.is_some_and(|found| u32_at(found, 0) == value)
    };
    has(NETCONFA_IFINDEX, ALL) && has(NETCONFA_FORWARDING, 0)
}

fn is_ours(link: &super::Link) -> bool {
    names::OVERLAYS.contains(&link.name.as_str())
}

/// Whether the link has an address that is none of its pods' gateways.
fn has_addresses(local: &Local, link: u32, pods: &[IpNetwork]) -> bool {
    local.addresses.iter().any(|(index, ip)| *index == link && !is_of_pods(*ip, pods))
}

/// Whether a route leads through the link that is not one to a pod.
fn has_routes(local: &Local, link: u32, pods: &[IpNetwork]) -> bool {
    let is_foreign = |route: &Route| route.is_ours() || !is_of_pods(route.dst.ip(), pods);
    local.routes.iter().any(|route| route.links.contains(&link) && is_foreign(route))
}

/// Whether this was the last pod's port of the bridge of the built-in conflist: the health endpoint may have another one. `local` no
/// longer has it as a port.
fn was_last_port(local: &Local, port: &super::Link) -> bool {
    let Some(master) = port.master else { return false };
    local.links.get(&master).is_some_and(|bridge| bridge.name == super::BRIDGE)
        && local.links.values().filter(|link| link.master == Some(master)).count() <= 1
}

fn is_of_pods(ip: IpAddr, pods: &[IpNetwork]) -> bool {
    pods.iter().any(|network| network.contains(ip))
}

#[cfg(test)]
mod tests;

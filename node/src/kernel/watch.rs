//! The kernel's messages about links, addresses and routes.

use std::io;
use std::net::IpAddr;

use ferrule_kernel::netlink::message::{Received, u32_at};
use ferrule_kernel::netlink::{Error, Socket, addr, link};
use ferrule_kernel::notices::Messages;
use ipnetwork::IpNetwork;
use nix::libc::{
    RTM_DELADDR, RTM_DELLINK, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK,
};

use super::local::{Local, Route, is_link_local};
use crate::listener::Listener;
use crate::{vxlan, wireguard};

/// `AF_BRIDGE`: a message about a port of a bridge, not about a link.
const BRIDGE: u8 = 7;

/// Whether a route of another program to this destination can change a plan.
type Interest = Box<dyn Fn(IpNetwork) -> bool + Send>;

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
        let groups =
            [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE];
        let messages = Listener::new(Messages::of_route(&groups).map_err(io::Error::other)?)?;
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
            if is_known || (!route.is_ours() && is_of_pods(route.dst.ip(), pods)) {
                Effect::None
            } else if !route.is_ours() && interest.is_some_and(|meets| !meets(route.dst)) {
                Effect::Later
            } else {
                Effect::Routes
            }
        }
        _ => Effect::None,
    }
}

fn is_ours(link: &super::Link) -> bool {
    [vxlan::LINK, wireguard::LINK].contains(&link.name.as_str())
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

/// Whether this was the last port of the bridge of the built-in conflist. `local` no longer has it as one.
fn was_last_port(local: &Local, port: &super::Link) -> bool {
    let Some(master) = port.master else { return false };
    local.links.get(&master).is_some_and(|bridge| bridge.name == super::BRIDGE)
        && !local.links.values().any(|link| link.master == Some(master))
}

fn is_of_pods(ip: IpAddr, pods: &[IpNetwork]) -> bool {
    pods.iter().any(|network| network.contains(ip))
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::netlink::Message;
    use ferrule_kernel::netlink::message::HEADER;
    use ferrule_kernel::netlink::route;

    use super::*;
    use crate::kernel::{Link, PROTOCOL};

    const PODS: &str = "10.244.1.0/24";

    /// eth0 with an address and a route of ours, and the VXLAN device.
    fn local() -> Local {
        let mut local = Local::default();
        for (index, name, master) in [
            (2, "eth0", None),
            (3, vxlan::LINK, None),
            (4, "veth0", None),
            (5, crate::kernel::BRIDGE, None),
            (6, "veth1", Some(5)),
            (7, "veth2", Some(5)),
        ] {
            let link = Link { name: name.into(), mtu: 1500, master, is_up: true, is_loopback: false };
            local.links.insert(index, link);
        }
        local.addresses.insert((2, "192.0.2.1".parse().unwrap()));
        local.routes.extend(Route::parse(&body(ours("10.244.2.0/24"))));
        local
    }

    fn ours(dst: &str) -> Message {
        foreign(dst, PROTOCOL)
    }

    fn foreign(dst: &str, protocol: u8) -> Message {
        let (dst, gw) = (dst.parse().unwrap(), Some("192.0.2.2".parse().unwrap()));
        let numbers = route::Route {
            dst,
            gw,
            protocol,
            src: None,
            onlink: false,
            mtu: 0,
            advmss: 0,
            priority: 0,
            table: None,
            scope: None,
        };
        route::add(2, &numbers)
    }

    fn body(message: Message) -> Vec<u8> {
        message.finish(0, 0).unwrap()[HEADER..].to_vec()
    }

    fn effect(local: &mut Local, kind: u16, message: Message) -> Effect {
        let body = body(message);
        let message = Received { kind, flags: 0, sequence: 0, port: 0, body: &body };
        let interest: Interest = Box::new(|dst| !dst.to_string().starts_with("198.51.100."));
        apply(local, &message, &[PODS.parse().unwrap()], Some(&interest))
    }

    #[test]
    fn routes_of_pods_and_known_routes_do_not_matter() {
        for (kind, message, expected) in [
            (RTM_NEWROUTE, ours("10.244.2.0/24"), Effect::None),
            (RTM_DELROUTE, ours("10.244.2.0/24"), Effect::Routes),
            (RTM_DELROUTE, ours("10.244.3.0/24"), Effect::None),
            (RTM_NEWROUTE, foreign("10.244.2.0/24", 3), Effect::Routes),
            (RTM_NEWROUTE, foreign("10.244.1.7/32", 3), Effect::None),
            (RTM_NEWROUTE, foreign("198.51.100.0/24", 3), Effect::Later),
            (RTM_DELROUTE, foreign("198.51.100.0/24", 3), Effect::None),
        ] {
            assert_eq!(effect(&mut local(), kind, message), expected);
        }
    }

    #[test]
    fn addresses_matter_unless_they_are_those_of_pods() {
        let address = |link, text: &str| addr::add(link, text.parse().unwrap(), 0);
        for (kind, message, expected) in [
            (RTM_NEWADDR, address(2, "192.0.2.1/24"), Effect::None),
            (RTM_NEWADDR, address(2, "192.0.2.7/24"), Effect::Matters),
            (RTM_DELADDR, address(2, "192.0.2.1/24"), Effect::Routes),
            (RTM_NEWADDR, address(4, "10.244.1.1/24"), Effect::None),
            (RTM_NEWADDR, address(4, "fe80::1/64"), Effect::None),
            (RTM_NEWADDR, address(3, "10.244.1.0/32"), Effect::Device),
        ] {
            assert_eq!(effect(&mut local(), kind, message), expected);
        }
    }

    #[test]
    fn links_matter_if_something_needs_them() {
        let down = |index| link::set_flags(index, 0, 0);
        for (index, expected) in [(2, Effect::Routes), (4, Effect::None), (9, Effect::None)] {
            assert_eq!(effect(&mut local(), RTM_NEWLINK, down(index)), expected, "{index}");
        }
        for (index, expected) in [(2, Effect::Routes), (3, Effect::Device), (4, Effect::None)] {
            assert_eq!(effect(&mut local(), RTM_DELLINK, down(index)), expected, "{index}");
        }
        // A pod of ptp: its link has the gateway's address and a route.
        let (mut local, own) = (local(), foreign("10.244.1.7/32", 3));
        local.addresses.insert((4, "10.244.1.1".parse().unwrap()));
        local.routes.extend(Route::parse(&body(own)).map(|route| Route { links: vec![4], ..route }));
        assert_eq!(effect(&mut local, RTM_NEWLINK, down(4)), Effect::None);
        assert_eq!(effect(&mut local, RTM_DELLINK, down(4)), Effect::None);
        assert!(local.routes.iter().all(|route| route.links != [4]));
        // The last port leaves the bridge, in either way.
        assert_eq!(effect(&mut local, RTM_DELLINK, down(6)), Effect::None);
        assert_eq!(effect(&mut local.clone(), RTM_DELLINK, down(7)), Effect::Matters);
        assert_eq!(effect(&mut local, RTM_NEWLINK, down(7)), Effect::Matters);
    }
}

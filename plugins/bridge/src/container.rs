//! The container's side: settings, addresses and routes of its interface.

use cni_common::netlink::LinkId;
use cni_common::netlink::link::{self, IFF_UP};
use cni_common::netlink::{Link, Message, Socket, addr, route};
use cni_common::netns::Netns;
use cni_common::spec::{CniError, Route, Step};
use cni_common::sysctl;
use ipnetwork::IpNetwork;

/// What the interface gets.
#[derive(Debug, Default)]
pub struct Setup {
    /// Addresses with their prefix lengths.
    pub addresses: Vec<IpNetwork>,
    /// Routes with their next hops.
    pub routes: Vec<Route>,
}

/// One interface of a container, whether it exists or not, with a socket in the container's namespace.
pub struct Container<'a> {
    netns: &'a Netns,
    ifname: &'a str,
    /// The socket.
    pub socket: Socket,
}

impl<'a> Container<'a> {
    /// Opens the socket.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(netns: &'a Netns, ifname: &'a str) -> Result<Self, CniError> {
        let socket = netns.enter(|| Socket::route().step(|| "open a netlink socket in the container"))?;
        Ok(Container { netns, ifname, socket })
    }

    /// The interface, if it exists.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn interface(&mut self) -> Result<Option<Link>, CniError> {
        let found = self.socket.link(LinkId::Name(self.ifname));
        found.step(|| format!("look up {:?} in the container", self.ifname))
    }

    /// Configures the interface, whose index is known, sets it up, and returns it as it is then.
    ///
    /// The addresses come before the link is set up: then the kernel announces them (`arp_notify`). The routes come after
    /// it, since their next hops are on the link.
    ///
    /// # Errors
    /// Which address or route failed, and what the kernel said.
    pub fn configure(&mut self, index: u32, setup: &Setup) -> Result<Link, CniError> {
        let ifname = self.ifname;
        self.netns.enter(|| set_sysctls(ifname, setup.addresses.iter().any(IpNetwork::is_ipv6)))?;
        let mut steps: Vec<(String, Message)> = Vec::new();
        for address in &setup.addresses {
            // Nobody but the IPAM plugin gives out addresses here, and waiting for others to object takes seconds.
            let add = addr::add(index, *address, addr::NODAD);
            steps.push((format!("failed to add IP addr {address} to {ifname:?}"), add));
        }
        steps.push((format!("failed to set {ifname:?} up"), link::set_flags(index, IFF_UP, IFF_UP)));
        for route in &setup.routes {
            let via = route.gw.map_or(String::new(), |gw| format!(" via {gw}"));
            steps.push((
                format!("failed to add route '{}{via} dev {ifname}'", route.dst),
                route::add(index, route),
            ));
        }
        steps.push((format!("look up {ifname:?}"), link::get(LinkId::Index(index))));
        let (steps, requests): (Vec<String>, Vec<Message>) = steps.into_iter().unzip();
        let mut last = Vec::new();
        for (step, answer) in steps.into_iter().zip(self.socket.requests(requests)) {
            last = answer.step(|| step)?;
        }
        let found = link::read(Ok(last)).step(|| "read the container's interface")?;
        found.ok_or_else(|| CniError::internal(format!("{ifname:?} is gone from the container")))
    }
}

/// Settings of the interface, in the calling thread's namespace. A kernel without IPv6 lacks those of IPv6, which matters
/// only if there is an IPv6 address.
fn set_sysctls(ifname: &str, has_ipv6: bool) -> Result<(), CniError> {
    let of_ipv6 = |link: &str, setting: &str| format!("net/ipv6/conf/{link}/{setting}");
    let _ = sysctl::write(&of_ipv6(ifname, "accept_dad"), "0");
    let _ = sysctl::write(&format!("net/ipv4/conf/{ifname}/arp_notify"), "1");
    if !has_ipv6 {
        return Ok(());
    }
    for link in ["lo", ifname] {
        sysctl::ensure(&of_ipv6(link, "disable_ipv6"), "0").step(|| "failed to enable IPv6")?;
    }
    sysctl::write(&of_ipv6(ifname, "keep_addr_on_down"), "1")
        .step(|| "failed to keep IPv6 addresses on link down")
}

//! A network namespace that stands for the world outside of the node: a pair of links leads to it, with addresses that RFC 2544 and
//! RFC 5180 reserve for tests of networks. The pair ends with the namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use cni_common::netns::Netns;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::link::{IFF_UP, NewLink, new_veth, set_flags};
use ferrule_kernel::netlink::route::{self, Route};
use ferrule_kernel::netlink::{LinkId, Socket, addr};
use ferrule_kernel::netns_file;
use ferrule_kit::{netns, socket};
use ipnetwork::IpNetwork;

/// The name of the namespace.
pub(super) const NAME: &str = "ferrule-test-outside";
/// Where namespaces have their paths.
const FOLDER: &str = "/run/netns";
/// The end of the pair on the node.
pub(super) const LINK: &str = "ferrule-test";
/// The largest packet of a veth pair: no packet of a pod is too large.
const MTU: u32 = 65535;

/// The subnets that may be free: the first address is the node's, the second that of the outside.
const V4: [[u8; 4]; 3] = [[198, 18, 255, 252], [198, 19, 255, 252], [198, 18, 127, 252]];
const V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0xfe, 0, 0, 0, 0);

/// The path of a namespace of the test.
pub(super) fn netns_path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// The namespace. It is removed when this is dropped.
pub(super) struct Outside {
    pub(super) netns: Netns,
    v4: Ipv4Addr,
    has_v6: bool,
}

impl Outside {
    pub(super) fn make() -> Result<Outside, String> {
        let path = netns_path(NAME);
        netns_file::make(&path).map_err(|error| format!("make the namespace {}: {error}", path.display()))?;
        let made = Netns::open(&path.display().to_string()).map_err(|error| error.to_string());
        made.and_then(|netns| connect(netns).map_err(|error| error.to_string())).inspect_err(|_| remove())
    }

    /// The node's address in the subnet.
    pub(super) fn host(&self, is_v4: bool) -> Option<IpAddr> {
        self.end(is_v4, 1)
    }

    /// The address in the namespace.
    pub(super) fn address(&self, is_v4: bool) -> Option<IpAddr> {
        self.end(is_v4, 2)
    }

    fn end(&self, is_v4: bool, number: u32) -> Option<IpAddr> {
        match is_v4 {
            true => Some(Ipv4Addr::from_bits(self.v4.to_bits() + number).into()),
            false => self.has_v6.then(|| Ipv6Addr::from_bits(V6.to_bits() + u128::from(number)).into()),
        }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        remove();
    }
}

fn remove() {
    // What stays is removed with the pods.
    let _ = netns_file::remove(&netns_path(NAME));
}

fn connect(netns: Netns) -> Result<Outside, CniError> {
    let mut socket = socket::route()?;
    let v4 = free(&mut socket)?;
    let end = NewLink { kind: "veth", name: LINK, mtu: MTU, ..NewLink::default() };
    let peer = NewLink { name: "eth0", mtu: MTU, netns: Some(netns.as_fd()), ..NewLink::default() };
    socket.request(new_veth(&end, &peer)).context(|| format!("make the link {LINK}"))?;
    let mut outside = Outside { netns, v4, has_v6: true };
    let has_v6 = configure(&mut socket, LINK, &outside, 1)?;
    let inside = netns::enter(&outside.netns, || configure(&mut socket::route()?, "eth0", &outside, 2))?;
    outside.has_v6 = has_v6 && inside;
    Ok(outside)
}

/// Adds the addresses with this number to the link, and in the namespace the way back. Returns whether IPv6 works.
fn configure(socket: &mut Socket, name: &str, outside: &Outside, number: u32) -> Result<bool, CniError> {
    let link = socket.link(LinkId::Name(name)).context(|| format!("find the link {name}"))?;
    let index = link.ok_or_else(|| CniError::internal(format!("there is no link {name}")))?.index;
    socket.request(set_flags(index, IFF_UP, IFF_UP)).context(|| format!("bring {name} up"))?;
    let mut add = |is_v4: bool| -> Result<(), CniError> {
        let (Some(ip), Some(gw)) = (outside.end(is_v4, number), outside.host(is_v4)) else { return Ok(()) };
        let network = IpNetwork::new(ip, if is_v4 { 30 } else { 64 })
            .map_err(|error| CniError::internal(error.to_string()))?;
        socket
            .request(addr::add(index, network, addr::NODAD))
            .context(|| format!("add {network} to {name}"))?;
        if number == 2 {
            let any = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let dst = IpNetwork::new(any, 0).map_err(|error| CniError::internal(error.to_string()))?;
            let default = Route {
                dst,
                gw: Some(gw),
                src: None,
                onlink: false,
                mtu: 0,
                advmss: 0,
                priority: 0,
                table: None,
                scope: None,
                protocol: 0,
            };
            socket.request(route::add(index, &default)).context(|| format!("add the route by {gw}"))?;
        }
        Ok(())
    };
    add(true)?;
    // A node may have no IPv6.
    Ok(add(false).is_ok())
}

/// The first of the subnets that no route of the node but the default one leads to.
fn free(socket: &mut Socket) -> Result<Ipv4Addr, CniError> {
    for subnet in V4.map(Ipv4Addr::from) {
        let address = IpAddr::from(Ipv4Addr::from_bits(subnet.to_bits() + 2));
        let found = socket.route_to(address);
        // An error means that the address cannot be reached.
        if found.ok().flatten().is_none_or(|route| route.prefix == 0) {
            return Ok(subnet);
        }
    }
    Err(CniError::internal("routes of the node lead to the subnets for tests in 198.18.0.0/15"))
}

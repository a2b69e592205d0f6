//! What DHCPv6 needs of the container's interface: a link-local address, a socket there, and the search for other hosts that have the
//! leased address.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use std::thread;
use std::time::{Duration, Instant};

use ferrule_kernel::netlink::addr::{self, Address, DAD_FAILED, NO_PREFIX_ROUTE, TENTATIVE};
use ferrule_kernel::netlink::{self, Link};
use ferrule_kernel::sysctl;
use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::libc::IFA_CACHEINFO;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Interface, POLL, inside};

/// All servers and relays of the link, and their port (RFC 8415, section 7).
pub(super) const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
pub(super) const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;

/// How long ADD waits for the link-local address. Duplicate address detection takes up to two seconds.
const LINK_LOCAL_WAIT: Duration = Duration::from_secs(3);
/// How long duplicate address detection of a leased address may take.
const PROBE_WAIT: Duration = Duration::from_secs(5);
/// How long the interface has the address for it, in seconds.
const PROBE_LIFETIME: u32 = 10;

/// What to do about IPv6 before the interface is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipv6 {
    /// Nothing.
    Leave,
    /// Enable it: another task waits.
    Enable,
    /// Enable it and wait for the link-local address.
    Wait,
}

/// Enables IPv6. The link-local address of a link that is still down can be used as soon as it is up: it follows from the MAC address,
/// and a second host with that would have no network anyway.
pub(super) fn enable(link: &Link, ifname: &str) -> io::Result<()> {
    sysctl::ensure(&setting(ifname, "disable_ipv6"), "0")?;
    if link.is_up() { Ok(()) } else { sysctl::ensure(&setting(ifname, "accept_dad"), "0") }
}

fn setting(ifname: &str, name: &str) -> String {
    format!("net/ipv6/conf/{ifname}/{name}")
}

/// Without such an address the exchange begins nevertheless: it may come late.
pub(super) fn wait_for_link_local(socket: &mut netlink::Socket, index: u32) {
    let end = Instant::now() + LINK_LOCAL_WAIT;
    while Instant::now() < end && matches!(link_local(socket, index), Ok(None)) {
        thread::sleep(POLL);
    }
}

/// The link-local address that can be used.
fn link_local(socket: &mut netlink::Socket, index: u32) -> Result<Option<Ipv6Addr>, netlink::Error> {
    let usable = |address: Address| match address.network {
        IpNetwork::V6(v6) if v6.ip().is_unicast_link_local() && address.flags & TENTATIVE == 0 => {
            Some(v6.ip())
        }
        _ => None,
    };
    Ok(socket.addresses(index)?.into_iter().find_map(usable))
}

impl Interface {
    /// A UDP socket with the link-local address of the interface, which must still be the same.
    pub(super) fn udp6_socket(&self) -> io::Result<Socket> {
        self.link_address()?.ok_or_else(|| self.gone())?;
        let found = netlink::Socket::route().and_then(|mut socket| link_local(&mut socket, self.index));
        let missing = || io::Error::other(format!("{} has no link-local IPv6 address", self.ifname));
        let address = found.map_err(io::Error::other)?.ok_or_else(missing)?;
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.bind_device(Some(self.ifname.as_bytes()))?;
        socket.bind(&SocketAddrV6::new(address, CLIENT_PORT, 0, self.index).into())?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Whether no other host on the link has this address, by the kernel's duplicate address detection.
    pub(crate) async fn is_free(&self, address: Ipv6Addr) -> io::Result<bool> {
        let Some(netns) = self.find(&self.path)? else { return Ok(true) };
        let interface = self.clone();
        inside(netns, move || interface.probe(IpAddr::from(address).into())).await
    }

    /// Gives the interface the address until the kernel has an opinion, and removes it again: the interface plugin adds it. If this
    /// process is killed meanwhile, the kernel removes it.
    fn probe(&self, address: IpNetwork) -> io::Result<bool> {
        sysctl::ensure(&setting(&self.ifname, "accept_dad"), "1")?;
        let mut socket = netlink::Socket::route().map_err(io::Error::other)?;
        // struct ifa_cacheinfo: not preferred, valid for so long, and two times that the kernel writes.
        let lifetimes = [0, PROBE_LIFETIME, 0, 0].map(u32::to_ne_bytes);
        let add =
            addr::add(self.index, address, NO_PREFIX_ROUTE).attr(IFA_CACHEINFO, lifetimes.as_flattened());
        match socket.request(add) {
            // The container has it already.
            Err(error) if error.errno == Errno::EEXIST => return Ok(true),
            added => drop(added.map_err(io::Error::other)?),
        }
        let outcome = self.detection(&mut socket, address);
        let mut remove = || match socket.request(addr::delete(self.index, address)) {
            Err(error) if error.errno != Errno::EADDRNOTAVAIL => Err(io::Error::other(error)),
            _ => Ok(()),
        };
        remove().or_else(|_| remove())?;
        outcome
    }

    fn detection(&self, socket: &mut netlink::Socket, address: IpNetwork) -> io::Result<bool> {
        let end = Instant::now() + PROBE_WAIT;
        while Instant::now() < end {
            let all = socket.addresses(self.index).map_err(io::Error::other)?;
            match all.iter().find(|found| found.network == address).map(|found| found.flags) {
                // The kernel removes a duplicate, because it has a lifetime.
                None => return Ok(false),
                Some(flags) if flags & DAD_FAILED != 0 => return Ok(false),
                Some(flags) if flags & TENTATIVE != 0 => thread::sleep(POLL),
                Some(_) => return Ok(true),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "duplicate address detection has not ended"))
    }

    /// Removes an expired address. A missing one is removed.
    pub(crate) async fn remove_address(&self, address: IpNetwork) {
        self.insist("remove an address", || addr::delete(self.index, address)).await;
    }
}

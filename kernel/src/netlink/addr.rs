//! IP addresses of links.
//!
//! # References
//! linux/if_addr.h; rtnetlink(7).

use std::net::Ipv6Addr;

use ipnetwork::IpNetwork;
use nix::libc::{
    IFA_ADDRESS, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS, IFA_LOCAL, IFA_MULTICAST, RTM_DELADDR, RTM_GETADDR,
    RTM_GETMULTICAST, RTM_NEWADDR,
};

use super::error::Error;
use super::message::{F_CREATE, F_DUMP, F_EXCL, Message, attrs, find_attr, u32_at};
use super::socket::{Answer, Socket};
use crate::ip::{IpFamily, from_octets, octets};

/// Length of `struct ifaddrmsg`.
const IFADDR: usize = 8;

/// linux/if_addr.h; not in libc.
const IFA_TARGET_NETNSID: u16 = 10;

/// `IFA_F_TEMPORARY`: a privacy address, which the kernel replaces after a time.
pub const TEMPORARY: u32 = 0x01;
/// `IFA_F_NODAD`: skip duplicate address detection.
pub const NODAD: u32 = 0x02;
/// `IFA_F_DADFAILED`: duplicate address detection found another host with this address.
pub const DAD_FAILED: u32 = 0x08;
/// `IFA_F_DEPRECATED`: the preferred lifetime has ended, new connections use another address.
pub const DEPRECATED: u32 = 0x20;
/// `IFA_F_TENTATIVE`: duplicate address detection has not ended, or has failed.
pub const TENTATIVE: u32 = 0x40;

/// `IFA_F_PERMANENT`: the address has no lifetime. Those of DHCP and of router advertisements have one.
pub const PERMANENT: u32 = 0x80;

/// `IFA_F_NOPREFIXROUTE`: add no route to the address's subnet. For IPv4 since Linux 4.16; older kernels ignore it.
pub const NO_PREFIX_ROUTE: u32 = 0x200;

/// An IP address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address and its prefix length.
    pub network: IpNetwork,
    /// `IFA_F_*`
    pub flags: u32,
    /// Scope as in linux/rtnetlink.h: 0 global, 253 link, 254 host.
    pub scope: u8,
}

fn local(kind: u16, flags: u16, link: u32, network: IpNetwork) -> Message {
    let mut header = [0; IFADDR];
    header[0] = IpFamily::of(network.ip()).number();
    header[1] = network.prefix();
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    Message::new(kind, flags, &header).attr(IFA_LOCAL, &octets(network.ip()))
}

fn message(kind: u16, flags: u16, link: u32, network: IpNetwork) -> Message {
    local(kind, flags, link, network).attr(IFA_ADDRESS, &octets(network.ip()))
}

/// A request that adds an address; `EEXIST` if the link has it. Sets the broadcast address of IPv4 networks
/// larger than /31. `flags` are `IFA_F_*`; [`NODAD`] is ignored for IPv4.
pub fn add(link: u32, network: IpNetwork, flags: u32) -> Message {
    let broadcast = match network {
        IpNetwork::V4(v4) if v4.prefix() < 31 => Some(v4.broadcast().octets()),
        _ => None,
    };
    let flags = if network.is_ipv4() { flags & !NODAD } else { flags };
    message(RTM_NEWADDR, F_CREATE | F_EXCL, link, network)
        .attr_if(IFA_BROADCAST, broadcast)
        .attr_if(IFA_FLAGS, (flags != 0).then(|| flags.to_ne_bytes()))
}

/// A request that adds an address again that a link has lost, with all attributes of the kernel's description; `EEXIST`
/// if the link with this index has it.
pub fn add_again(link: u32, description: &[u8]) -> Message {
    let mut header = [0; IFADDR];
    header.iter_mut().zip(description).for_each(|(to, from)| *to = *from);
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    let message = Message::new(RTM_NEWADDR, F_CREATE | F_EXCL, &header);
    message.attrs_in(description.get(IFADDR..).unwrap_or_default(), &[])
}

/// A request that removes an address.
pub fn delete(link: u32, network: IpNetwork) -> Message {
    message(RTM_DELADDR, 0, link, network)
}

/// As [`delete`], also for an address with a peer, which [`Address`] does not name. With IPv4, of several addresses that differ only in
/// the prefix length, the kernel removes one.
pub fn delete_local(link: u32, network: IpNetwork) -> Message {
    local(RTM_DELADDR, 0, link, network)
}

/// A request for the addresses of a link; of all links if the index is 0.
pub fn list(link: u32) -> Message {
    let mut header = [0; IFADDR];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    Message::new(RTM_GETADDR, F_DUMP, &header)
}

/// A request for the addresses of all links of the namespace with this ID in the socket's namespace; `EINVAL` if it is gone.
/// Linux 4.20 or newer.
pub fn list_in(netns: i32) -> Message {
    Message::new(RTM_GETADDR, F_DUMP, &[0; IFADDR]).attr(IFA_TARGET_NETNSID, &netns.to_ne_bytes())
}

/// The addresses in the answer to [`list_in`], as [`read_all`]. An older kernel ignores the ID and lists the socket's own namespace:
/// then the list is empty.
pub fn read_in(answer: Answer, netns: i32) -> Result<Vec<(u32, Address)>, Error> {
    let is_there = |body: &&Vec<u8>| {
        let id = find_attr(body.get(IFADDR..).unwrap_or_default(), IFA_TARGET_NETNSID);
        id == Some(&netns.to_ne_bytes())
    };
    Ok(answer?.iter().filter(is_there).filter_map(|body| Some((u32_at(body, 4), parse(body)?))).collect())
}

/// The kernel's descriptions of the addresses of the link with this index in the answer to [`list`]; [`parse`] reads one.
pub fn descriptions(answer: Answer, link: u32) -> Result<Vec<Vec<u8>>, Error> {
    // Kernels before 4.20 ignore the index and dump the addresses of all links.
    Ok(answer?.into_iter().filter(|body| u32_at(body, 4) == link).collect())
}

/// The addresses of the link with this index in the answer to [`list`].
pub fn read(answer: Answer, link: u32) -> Result<Vec<Address>, Error> {
    Ok(descriptions(answer, link)?.iter().filter_map(|body| parse(body)).collect())
}

/// All addresses in the answer to [`list`], each with the index of its link.
pub fn read_all(answer: Answer) -> Result<Vec<(u32, Address)>, Error> {
    Ok(answer?.iter().filter_map(|body| Some((u32_at(body, 4), parse(body)?))).collect())
}

impl Socket {
    /// The addresses of the link with this index.
    pub fn addresses(&mut self, link: u32) -> Result<Vec<Address>, Error> {
        read(self.request(list(link)), link)
    }

    /// The addresses of all links, each with the index of its link, by one dump.
    pub fn all_addresses(&mut self) -> Result<Vec<(u32, Address)>, Error> {
        read_all(self.request(list(0)))
    }

    /// The IPv6 multicast groups that the link with this index has joined.
    pub fn groups(&mut self, link: u32) -> Result<Vec<Ipv6Addr>, Error> {
        let mut header = [0; IFADDR];
        header[0] = IpFamily::V6.number();
        header[4..8].copy_from_slice(&link.to_ne_bytes());
        let bodies = self.request(Message::new(RTM_GETMULTICAST, F_DUMP, &header))?;
        let own = bodies.iter().filter(|body| u32_at(body, 4) == link);
        let group = |body: &Vec<u8>| {
            let value = find_attr(body.get(IFADDR..)?, IFA_MULTICAST)?;
            <[u8; 16]>::try_from(value).ok().map(Ipv6Addr::from)
        };
        Ok(own.filter_map(group).collect())
    }
}

/// The address in the kernel's description. `None` if it is not one of an address.
pub fn parse(body: &[u8]) -> Option<Address> {
    let header = body.get(..IFADDR)?;
    let (mut local, mut address, mut flags) = (None, None, u32::from(header[2]));
    let mut is_deprecated = false;
    for (kind, value) in attrs(&body[IFADDR..]) {
        match kind {
            IFA_LOCAL => local = from_octets(value),
            IFA_ADDRESS => address = from_octets(value),
            IFA_FLAGS => flags = u32_at(value, 0),
            // `struct ifa_cacheinfo` begins with the preferred lifetime. The kernel sets the flag up to a second after its end.
            IFA_CACHEINFO => is_deprecated = value.get(..4) == Some(&[0; 4]),
            _ => {}
        }
    }
    if is_deprecated {
        flags |= DEPRECATED;
    }
    // IPv6 addresses have IFA_LOCAL only on point-to-point links. There IFA_ADDRESS is the address of the
    // peer.
    let network = IpNetwork::new(local.or(address)?, header[1]).ok()?;
    Some(Address { network, flags, scope: header[3] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_preferred_lifetime_is_deprecated() {
        let flags = |preferred: u32| {
            let lifetimes = [preferred, 86_400, 0, 0].map(u32::to_ne_bytes).concat();
            let request = add(3, "2001:db8::1/64".parse().unwrap(), 0).attr(IFA_CACHEINFO, &lifetimes);
            parse(&request.finish(0, 0).unwrap()[16..]).unwrap().flags
        };
        assert_eq!((flags(0), flags(1), flags(u32::MAX)), (DEPRECATED, 0, 0));
    }
}

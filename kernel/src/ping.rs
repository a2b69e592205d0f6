//! Sockets for echo requests. The kernel gives each one the answers to its own requests only, so a flood of others costs nothing.

use std::io;
use std::net::UdpSocket;

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::ip::IpFamily;

/// The header of a request and of an answer.
pub const HEADER: usize = 8;
/// Which groups of a network namespace may open these sockets, and the value for root's: by default nobody may.
pub const GROUPS: (&str, &str) = ("net/ipv4/ping_group_range", "0 0");

/// A socket in the network namespace of the calling thread. Its packets are neither divided nor held back by what the kernel has
/// learned of the way.
///
/// # Errors
/// [`GROUPS`] do not include that of the caller, or the kernel lacks the family.
pub fn socket(family: IpFamily) -> io::Result<UdpSocket> {
    let (domain, protocol) = match family {
        IpFamily::V4 => (AddressFamily::INET, ipproto::ICMP),
        IpFamily::V6 => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let socket = socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(protocol))?;
    match family {
        IpFamily::V4 => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?,
        IpFamily::V6 => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?,
    }
    Ok(socket.into())
}

/// The message of a request, in an IP packet of this size, or the shortest one. The kernel adds identifier and checksum.
pub fn request(family: IpFamily, number: u16, size: u16) -> Vec<u8> {
    let (kind, header) = match family {
        IpFamily::V4 => (8, 20),
        IpFamily::V6 => (128, 40),
    };
    let [high, low] = number.to_be_bytes();
    let mut message = vec![kind, 0, 0, 0, 0, 0, high, low];
    message.resize(usize::from(size).saturating_sub(header).max(HEADER), 0);
    message
}

/// The number of the request that this message answers.
pub fn answered(family: IpFamily, message: &[u8]) -> Option<u16> {
    let kind = if family == IpFamily::V4 { 0 } else { 129 };
    let [first, _, _, _, _, _, high, low] = *message.first_chunk::<HEADER>()?;
    (first == kind).then(|| u16::from_be_bytes([high, low]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_has_a_number() {
        for (family, kind, header) in [(IpFamily::V4, 0, 20), (IpFamily::V6, 129, 40)] {
            let mut message = request(family, 0x0203, 100);
            assert_eq!((message.len() + header, request(family, 1, 0).len()), (100, HEADER));
            assert_eq!(answered(family, &message), None, "our own request");
            message[0] = kind;
            assert_eq!(answered(family, &message), Some(0x0203));
            (0..HEADER).for_each(|len| assert_eq!(answered(family, &message[..len]), None));
        }
    }
}

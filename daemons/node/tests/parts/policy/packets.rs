//! Packets as a hostile pod writes them, header by header. Pure.

use std::net::IpAddr;

use ferrule_kernel::ip::{checksum, octets};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;
const FRAGMENT: u8 = 44;

/// Who sends to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) ports: [u16; 2],
}

/// The number of the protocol ICMP for this address.
pub(crate) fn icmp_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 1 } else { ICMPV6 }
}

impl Ends {
    /// The part behind the IP header, with its checksum at `at`. ICMP of IPv4 has no pseudo header.
    fn sealed(&self, protocol: u8, mut part: Vec<u8>, at: usize) -> Vec<u8> {
        let length = u32::try_from(part.len()).unwrap().to_be_bytes();
        let pseudo = match protocol {
            1 => Vec::new(),
            _ => {
                [&octets(self.source)[..], &octets(self.destination), &length, &[0, 0, 0, protocol]].concat()
            }
        };
        let sum = checksum(&[&pseudo[..], &part].concat());
        part[at..at + 2].copy_from_slice(&sum);
        part
    }

    fn ports(&self) -> Vec<u8> {
        self.ports.map(u16::to_be_bytes).concat()
    }

    pub(crate) fn back(&self) -> Ends {
        let [one, two] = self.ports;
        Ends { source: self.destination, destination: self.source, ports: [two, one] }
    }

    pub(crate) fn udp(&self, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(8 + data.len()).unwrap().to_be_bytes();
        self.sealed(UDP, [&self.ports()[..], &length, &[0, 0], data].concat(), 6)
    }

    pub(crate) fn tcp(&self, flags: u8, data: &[u8]) -> Vec<u8> {
        let rest = [0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
        self.sealed(TCP, [&self.ports()[..], &rest, data].concat(), 16)
    }

    /// An INIT without a checksum.
    pub(crate) fn sctp(&self, data: &[u8]) -> Vec<u8> {
        [
            &self.ports()[..],
            &[0; 8],
            &[1, 0, 0, 20],
            &[0, 0, 0, 1, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1],
            data,
        ]
        .concat()
    }

    pub(crate) fn icmp(&self, kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
        self.sealed(icmp_of(self.source), [&[kind, code, 0, 0], rest].concat(), 2)
    }

    /// A whole packet.
    pub(crate) fn packet(&self, protocol: u8, part: &[u8]) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => self.ipv4(protocol, (0, false), &[], part),
            _ => self.ipv6(protocol, part),
        }
    }

    /// With an offset in bytes and "more", and with options of a multiple of four bytes. The kernel fills the checksum.
    pub(crate) fn ipv4(
        &self,
        protocol: u8,
        (offset, more): (u16, bool),
        options: &[u8],
        part: &[u8],
    ) -> Vec<u8> {
        let head = 20 + options.len();
        let length = u16::try_from(head + part.len()).unwrap().to_be_bytes();
        let fragment = ((offset / 8) | (u16::from(more) << 13)).to_be_bytes();
        let [low, high] = self.ports[0].to_be_bytes();
        let start = [0x40 | u8::try_from(head / 4).unwrap(), 0, length[0], length[1], low, high];
        let rest = [fragment[0], fragment[1], 64, protocol, 0, 0];
        [&start[..], &rest, &octets(self.source), &octets(self.destination), options, part].concat()
    }

    pub(crate) fn ipv6(&self, next: u8, part: &[u8]) -> Vec<u8> {
        self.ipv6_hops(next, 64, part)
    }

    pub(crate) fn ipv6_hops(&self, next: u8, hops: u8, part: &[u8]) -> Vec<u8> {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        let start = [0x60, 0, 0, 0, length[0], length[1], next, hops];
        [&start[..], &octets(self.source), &octets(self.destination), part].concat()
    }

    /// The packet in two parts: the first one has `first` bytes, a multiple of eight.
    pub(crate) fn in_two(&self, protocol: u8, part: &[u8], first: usize) -> [Vec<u8>; 2] {
        let (one, two) = part.split_at(first);
        self.fragments(protocol, [(0, true, one), (u16::try_from(first).unwrap(), false, two)])
    }

    pub(crate) fn fragments<const N: usize>(
        &self,
        protocol: u8,
        parts: [(u16, bool, &[u8]); N],
    ) -> [Vec<u8>; N] {
        parts.map(|(offset, more, part)| match self.source {
            IpAddr::V4(_) => self.ipv4(protocol, (offset, more), &[], part),
            IpAddr::V6(_) => {
                let [high, low] = (offset | u16::from(more)).to_be_bytes();
                let [one, two] = self.ports[0].to_be_bytes();
                self.ipv6(FRAGMENT, &[&[protocol, 0, high, low, 0, 0, one, two], part].concat())
            }
        })
    }
}

/// An extension header of eight bytes with a padding option, before `next`.
pub(crate) fn extension(next: u8) -> [u8; 8] {
    [next, 0, 1, 4, 0, 0, 0, 0]
}

/// A routing header with one address, before `next`.
pub(crate) fn routing(next: u8, kind: u8, left: u8, address: IpAddr) -> Vec<u8> {
    [&[next, 2, kind, left, 0, 0, 0, 0], &octets(address)[..]].concat()
}

//! The frames of a probe, and what answers look like. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ip::checksum;
use crate::netlink::Mac;

/// `ETH_P_ARP` and `ETH_P_IPV6`.
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Ethernet, IPv4, and the lengths of their addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
/// The lengths of an Ethernet header, an ARP message and an IPv6 header.
const ETHERNET: usize = 14;
const ARP_LENGTH: usize = 28;
const IPV6_HEADER: usize = 40;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// A neighbour message that a router has passed on has less.
const HOP_LIMIT: u8 = 255;

/// The question for the owner of the address. The sender has no address, so no host learns one from it.
pub(super) fn question(from: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => arp_probe(from, ip),
        IpAddr::V6(ip) => solicitation(from, ip),
    }
}

/// RFC 5227, section 2.1.1.
fn arp_probe(from: Mac, ip: Ipv4Addr) -> Vec<u8> {
    let nobody = [0; 4];
    [&[0xff; 6][..], &from.0, &ARP, &ARP_HEAD, &[0, 1], &from.0, &nobody, &[0; 6], &ip.octets()].concat()
}

/// RFC 4862, section 5.4.2.
fn solicitation(from: Mac, ip: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = ip.octets();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    let mut message = [&[SOLICITATION, 0, 0, 0, 0, 0, 0, 0][..], &ip.octets()].concat();
    let pseudo = [&[0; 16][..], &group.octets(), &[0, 0, 0, 24, 0, 0, 0, ICMPV6], &message].concat();
    message[2..4].copy_from_slice(&checksum(&pseudo));
    let header = [0x60, 0, 0, 0, 0, 24, ICMPV6, HOP_LIMIT];
    [&[0x33, 0x33, 0xff, a, b, c][..], &from.0, &IPV6, &header, &[0; 16], &group.octets(), &message].concat()
}

/// The address that the sender of the frame says it has, and the sender.
pub fn owner(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    let (ethernet, content) = frame.split_at_checked(ETHERNET)?;
    let sender = Mac(ethernet.get(6..12)?.try_into().ok()?);
    match ethernet.get(12..)?.try_into().ok()? {
        ARP => {
            let message = content.get(..ARP_LENGTH)?;
            let mac = Mac(message.get(8..14)?.try_into().ok()?);
            let ip = Ipv4Addr::from(<[u8; 4]>::try_from(message.get(14..18)?).ok()?);
            (message.starts_with(&ARP_HEAD)).then_some((ip.into(), mac))
        }
        IPV6 => {
            let (header, message) = content.split_at_checked(IPV6_HEADER)?;
            let target = Ipv6Addr::from(<[u8; 16]>::try_from(message.get(8..24)?).ok()?);
            let is_advertisement = header[6..8] == [ICMPV6, HOP_LIMIT] && message[..2] == [ADVERTISEMENT, 0];
            is_advertisement.then_some((target.into(), sender))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);

    #[test]
    fn questions() {
        let arp = question(MAC, "10.0.0.9".parse().unwrap());
        assert_eq!(arp.len(), ETHERNET + ARP_LENGTH);
        assert_eq!((&arp[28..32], &arp[38..]), (&[0; 4][..], &[10, 0, 0, 9][..]), "sender and target");
        let nd = question(MAC, "fd00::1:2:3".parse().unwrap());
        assert_eq!(nd[..6], [0x33, 0x33, 0xff, 2, 0, 3]);
        assert_eq!(nd[38..54], "ff02::1:ff02:3".parse::<Ipv6Addr>().unwrap().octets());
        let pseudo = [&nd[22..54], &[0, 0, 0, 24, 0, 0, 0, 58], &nd[54..]].concat();
        assert_eq!(checksum(&pseudo), [0, 0]);
    }

    #[test]
    fn only_complete_answers_name_an_owner() {
        let mut reply = question(MAC, "10.0.0.1".parse().unwrap());
        reply[28..32].copy_from_slice(&[10, 0, 0, 9]);
        let mut advertisement = question(MAC, "fd00::9".parse().unwrap());
        advertisement[54] = ADVERTISEMENT;
        for (frame, ip) in [(reply, "10.0.0.9"), (advertisement, "fd00::9")] {
            assert_eq!(owner(&frame), Some((ip.parse().unwrap(), MAC)));
            for len in 0..frame.len() {
                assert_eq!(owner(&frame[..len]), None, "{len} bytes of {ip}");
            }
            // Another protocol, and a router's hop limit or another length of addresses.
            for at in [12, if ip.contains(':') { 21 } else { 18 }] {
                let mut other = frame.clone();
                other[at] ^= 1;
                assert_eq!(owner(&other), None, "byte {at}");
            }
        }
        assert_eq!(owner(&question(MAC, "fd00::9".parse().unwrap())), None, "another host asks");
    }
}

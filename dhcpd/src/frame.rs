//! Ethernet frames with one UDP datagram between the DHCP ports. Pure.

use std::net::Ipv4Addr;

/// The server's port.
pub(crate) const SERVER_PORT: u16 = 67;
/// The client's port.
pub(crate) const CLIENT_PORT: u16 = 68;
/// The Ethernet broadcast address.
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

const ETHERNET: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
const IPV4: [u8; 2] = [8, 0];
const PROTOCOL_UDP: u8 = 17;
const TTL: u8 = 64;

/// The addresses of a frame from the client to the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) from_mac: [u8; 6],
    pub(crate) to_mac: [u8; 6],
    pub(crate) from: Ipv4Addr,
    pub(crate) to: Ipv4Addr,
}

/// The frame with this content. `None` if the content is too long.
pub(crate) fn build(addresses: Addresses, content: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(IP + UDP + content.len()).ok()?;
    let udp_length = length - IP as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(length.to_be_bytes());
    ip.extend([0, 0, 0, 0, TTL, PROTOCOL_UDP, 0, 0]);
    ip.extend(addresses.from.octets());
    ip.extend(addresses.to.octets());
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut udp = Vec::with_capacity(UDP + content.len());
    udp.extend([CLIENT_PORT, SERVER_PORT, udp_length, 0].iter().flat_map(|field| field.to_be_bytes()));
    udp.extend(content);
    let pseudo =
        [&addresses.from.octets()[..], &addresses.to.octets(), &[0, PROTOCOL_UDP], &udp_length.to_be_bytes()]
            .concat();
    let sum = match checksum(&[&pseudo, &udp]) {
        0 => 0xffff,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    Some([&addresses.to_mac[..], &addresses.from_mac, &IPV4, &ip, &udp].concat())
}

/// The source MAC address and the content of a frame to the client's port. `None` for any other frame.
///
/// The UDP checksum is not checked: in a frame that has never left the machine it is incomplete.
pub(crate) fn parse(frame: &[u8]) -> Option<([u8; 6], &[u8])> {
    let from_mac = frame.get(6..12)?.try_into().ok()?;
    if frame.get(12..14)? != IPV4 {
        return None;
    }
    let packet = &frame[ETHERNET..];
    let header = usize::from(packet.first()? & 0xf) * 4;
    let field = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let is_first_fragment = field(6)? & 0x3fff == 0;
    if packet[0] >> 4 != 4 || header < IP || !is_first_fragment || *packet.get(9)? != PROTOCOL_UDP {
        return None;
    }
    if checksum(&[packet.get(..header)?]) != 0 || field(header + 2)? != CLIENT_PORT {
        return None;
    }
    let end = header + usize::from(field(header + 4)?);
    Some((from_mac, packet.get(header + UDP..end)?))
}

/// The Internet checksum (RFC 1071). Only the last part may have an odd length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 =
        words.map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames() {
        let addresses = Addresses {
            from_mac: [2, 0, 0, 0, 0, 1],
            to_mac: BROADCAST,
            from: Ipv4Addr::UNSPECIFIED,
            to: Ipv4Addr::BROADCAST,
        };
        let mut frame = build(addresses, b"content").unwrap();
        assert_eq!((checksum(&[&frame[14..34]]), frame.len()), (0, 49));
        assert_eq!(frame[34..38], [0, 68, 0, 67]);
        // The sum over the pseudo header and the datagram.
        let pseudo = [&frame[26..34], &[0, 17], &frame[38..40]].concat();
        assert_eq!(checksum(&[&pseudo, &frame[34..]]), 0);
        // To the server's port: not for us.
        assert_eq!(parse(&frame), None);
        frame[37] = 68;
        // Ethernet pads short frames.
        frame.extend([0; 20]);
        assert_eq!(parse(&frame), Some(([2, 0, 0, 0, 0, 1], &b"content"[..])));
        for len in 0..49 {
            assert_eq!(parse(&frame[..len]), None, "{len} bytes");
        }
        frame[16] ^= 1;
        assert_eq!(parse(&frame), None, "wrong checksum");
    }

    proptest::proptest! {
        /// Any change of a frame, and any bytes.
        #[test]
        fn random_bytes(
            random in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..100),
            mutations in proptest::collection::vec((0..57_usize, proptest::arbitrary::any::<u8>()), 0..4),
            len in 0..60_usize,
        ) {
            let _ = parse(&random);
            let [from, to] = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST];
            let addresses = Addresses { from_mac: [2; 6], to_mac: BROADCAST, from, to };
            let mut frame = build(addresses, &random[..random.len().min(15)]).unwrap();
            frame.resize(57, 0);
            frame[37] = 68;
            for (at, value) in mutations {
                frame[at] = value;
            }
            // The checksum of the IP header is right for all fields, so that more of them are looked at.
            frame[24..26].fill(0);
            let header = usize::from(frame[14] & 0xf) * 4;
            if let Some(header) = frame.get(14..14 + header) {
                let sum = checksum(&[header]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            let _ = parse(frame.get(..len).unwrap_or(&frame));
        }
    }
}

//! Ethernet frames with one UDP datagram between the DHCP ports. Pure.

use std::net::Ipv4Addr;

use etherparse::{LinkSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

/// The server's port.
pub(crate) const SERVER_PORT: u16 = 67;
/// The client's port.
pub(crate) const CLIENT_PORT: u16 = 68;
/// The Ethernet broadcast address.
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

const TTL: u8 = 64;

/// The frame with this content, from the client to the server: both MAC addresses, and both IP addresses. `None` if the content is
/// too long.
pub(crate) fn build(
    [from_mac, to_mac]: [[u8; 6]; 2],
    [from, to]: [Ipv4Addr; 2],
    content: &[u8],
) -> Option<Vec<u8>> {
    let headers = PacketBuilder::ethernet2(from_mac, to_mac)
        .ipv4(from.octets(), to.octets(), TTL)
        .udp(CLIENT_PORT, SERVER_PORT);
    let mut frame = Vec::with_capacity(headers.size(content.len()));
    headers.write(&mut frame, content).ok()?;
    Some(frame)
}

/// The source MAC address and the content of a frame to the client's port. `None` for any other frame.
///
/// The UDP checksum is not checked: in a frame that has never left the machine it is incomplete.
pub(crate) fn parse(frame: &[u8]) -> Option<([u8; 6], &[u8])> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(LinkSlice::Ethernet2(ethernet)) = packet.link else { return None };
    let Some(NetSlice::Ipv4(ip)) = packet.net else { return None };
    let Some(TransportSlice::Udp(udp)) = packet.transport else { return None };
    let header = ip.header();
    let is_right = header.header_checksum() == header.to_header().calc_header_checksum();
    let is_ours = packet.link_exts.is_empty() && udp.destination_port() == CLIENT_PORT;
    (is_right && is_ours && !ip.is_payload_fragmented()).then(|| (ethernet.source(), udp.payload()))
}

#[cfg(test)]
mod tests {
    use etherparse::checksum::Sum16BitWords;

    use super::*;

    /// The Internet checksum (RFC 1071).
    fn checksum(bytes: &[u8]) -> u16 {
        Sum16BitWords::new().add_slice(bytes).ones_complement().to_be()
    }

    #[test]
    fn frames() {
        let addresses = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST];
        let mut frame = build([[2, 0, 0, 0, 0, 1], BROADCAST], addresses, b"content").unwrap();
        assert_eq!((checksum(&frame[14..34]), frame.len()), (0, 49));
        assert_eq!(frame[34..38], [0, 68, 0, 67]);
        // The sum over the pseudo header and the datagram.
        let pseudo = [&frame[26..34], &[0, 17], &frame[38..40], &frame[34..]].concat();
        assert_eq!(checksum(&pseudo), 0);
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
            let addresses = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST];
            let mut frame = build([[2; 6], BROADCAST], addresses, &random[..random.len().min(15)]).unwrap();
            frame.resize(57, 0);
            frame[37] = 68;
            for (at, value) in mutations {
                frame[at] = value;
            }
            // The checksum of the IP header is right for all fields, so that more of them are looked at.
            frame[24..26].fill(0);
            let header = usize::from(frame[14] & 0xf) * 4;
            if let Some(header) = frame.get(14..14 + header) {
                let sum = checksum(header);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            let _ = parse(frame.get(..len).unwrap_or(&frame));
        }
    }
}

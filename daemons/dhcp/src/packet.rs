//! The format of DHCP messages: the fixed fields that a client uses, and the options. Pure.
//!
//! Everybody on the link can send such a message, so decoding never fails on the content of a field: an option that is cut off
//! ends its area.
//!
//! # References
//! RFC 2131, section 2; RFC 2132, section 9.3 (overload); RFC 3396 (options that occur more than once).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// `op` of a client's and of a server's message.
pub(crate) const REQUEST: u8 = 1;
pub(crate) const REPLY: u8 = 2;

/// `htype` and `hlen` of Ethernet.
const ETHERNET: [u8; 2] = [1, 6];
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// The offsets of `chaddr`, `sname`, `file`, and of what follows `file`.
const CHADDR: usize = 28;
const SNAME: usize = 44;
const FILE: usize = 108;
const COOKIE: usize = 236;
const OPTIONS: usize = COOKIE + MAGIC.len();
const PAD: u8 = 0;
const OVERLOAD: u8 = 52;
const END: u8 = 255;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) op: u8,
    pub(crate) xid: u32,
    pub(crate) secs: u16,
    pub(crate) broadcast: bool,
    /// The address that the client has.
    pub(crate) ciaddr: Ipv4Addr,
    /// The address that the server gives.
    pub(crate) yiaddr: Ipv4Addr,
    pub(crate) mac: [u8; 6],
    pub(crate) options: Options,
}

/// The options by code. The content of one that occurs more than once is joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options(BTreeMap<u8, Vec<u8>>);

impl Options {
    /// The content of an option.
    pub(crate) fn get(&self, code: u8) -> Option<&[u8]> {
        self.0.get(&code).map(Vec::as_slice)
    }

    /// The first of an option's [`fields`].
    pub(crate) fn first<const N: usize>(&self, code: u8) -> Option<[u8; N]> {
        fields(self.get(code)?).first().copied()
    }

    /// Sets an option.
    pub(crate) fn set(&mut self, code: u8, content: impl Into<Vec<u8>>) {
        if !matches!(code, PAD | END) {
            self.0.insert(code, content.into());
        }
    }

    fn read(&mut self, mut area: &[u8]) {
        loop {
            match area {
                [PAD, rest @ ..] => area = rest,
                [code @ 1..=254, len, rest @ ..] => {
                    let Some((content, rest)) = rest.split_at_checked(usize::from(*len)) else { return };
                    self.0.entry(*code).or_default().extend(content);
                    area = rest;
                }
                _ => return,
            }
        }
    }
}

/// The content of an option as fields of `N` bytes; none if it has another length.
pub(crate) fn fields<const N: usize>(content: &[u8]) -> &[[u8; N]] {
    match content.as_chunks() {
        (fields, []) => fields,
        _ => &[],
    }
}

impl Packet {
    /// The bytes of the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.op];
        bytes.extend(ETHERNET);
        bytes.push(0);
        bytes.extend(self.xid.to_be_bytes());
        bytes.extend(self.secs.to_be_bytes());
        bytes.extend([u8::from(self.broadcast) << 7, 0]);
        bytes.extend(self.ciaddr.octets());
        bytes.extend(self.yiaddr.octets());
        bytes.resize(CHADDR, 0);
        bytes.extend(self.mac);
        bytes.resize(COOKIE, 0);
        bytes.extend(MAGIC);
        for (code, content) in &self.options.0 {
            for part in content.chunks(usize::from(u8::MAX)) {
                bytes.extend([*code, part.len() as u8]);
                bytes.extend(part);
            }
        }
        bytes.push(END);
        bytes
    }

    /// Decodes a message about an Ethernet link.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Packet> {
        let header: &[u8; OPTIONS] = bytes.first_chunk()?;
        if header[1..3] != ETHERNET || header[COOKIE..] != MAGIC {
            return None;
        }
        let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let mut options = Options::default();
        options.read(&bytes[OPTIONS..]);
        // Bit 0: more options are in `file`, bit 1: in `sname`.
        let overload = options.first::<1>(OVERLOAD).map_or(0, |[areas]| areas);
        if overload & 1 != 0 {
            options.read(&header[FILE..COOKIE]);
        }
        if overload & 2 != 0 {
            options.read(&header[SNAME..FILE]);
        }
        let [a, b, c, d] = word(CHADDR);
        Some(Packet {
            op: header[0],
            xid: u32::from_be_bytes(word(4)),
            secs: u16::from_be_bytes([header[8], header[9]]),
            broadcast: header[10] & 0x80 != 0,
            ciaddr: word(12).into(),
            yiaddr: word(16).into(),
            mac: [a, b, c, d, header[CHADDR + 4], header[CHADDR + 5]],
            options,
        })
    }
}

#[cfg(test)]
mod tests {
    use dhcproto::v4::{Decodable as _, DhcpOption, Message, OptionCode};
    use proptest::prelude::*;

    use super::*;

    fn packet(options: Vec<(u8, Vec<u8>)>) -> Packet {
        let mut packet = Packet {
            op: REPLY,
            xid: 0x0102_0304,
            secs: 7,
            broadcast: true,
            ciaddr: [10, 0, 0, 4].into(),
            yiaddr: [10, 0, 0, 5].into(),
            mac: [2, 0, 0, 0, 0, 1],
            options: Options::default(),
        };
        options.into_iter().for_each(|(code, content)| packet.options.set(code, content));
        packet
    }

    #[test]
    fn another_decoder_reads_the_same() {
        let packet =
            packet(vec![(53, vec![5]), (61, vec![7; 300]), (82, vec![1, 1, 9]), (51, vec![0, 0, 1, 0])]);
        let bytes = packet.encode();
        let message = Message::from_bytes(&bytes).unwrap();
        assert_eq!((message.xid(), message.secs(), message.chaddr()), (packet.xid, 7, &packet.mac[..]));
        assert_eq!((message.ciaddr(), message.yiaddr()), (packet.ciaddr, packet.yiaddr));
        assert!(message.flags().broadcast());
        assert_eq!(
            message.opts().get(OptionCode::AddressLeaseTime),
            Some(&DhcpOption::AddressLeaseTime(256))
        );
        assert_eq!(Packet::decode(&bytes), Some(packet));
    }

    /// RFC 3396: the areas are joined in the order options, file, sname.
    #[test]
    fn overloaded_fields() {
        for (areas, expected) in [(0, "a"), (1, "af"), (2, "as"), (3, "afs"), (0xff, "afs")] {
            let mut bytes = packet(vec![(OVERLOAD, vec![areas])]).encode();
            bytes.pop();
            bytes.extend([15, 1, b'a', END, 15, 1, b'x']);
            bytes[FILE..FILE + 4].copy_from_slice(&[15, 1, b'f', END]);
            // Without an end, and with an option that is cut off by the end of the field.
            bytes[SNAME..SNAME + 3].copy_from_slice(&[15, 1, b's']);
            bytes[FILE - 2..FILE].copy_from_slice(&[15, 200]);
            let options = Packet::decode(&bytes).unwrap().options;
            assert_eq!(options.get(15), Some(expected.as_bytes()), "{areas}");
        }
    }

    #[test]
    fn only_ethernet() {
        let bytes = packet(vec![]).encode();
        for (at, values) in [(1, [0, 6, 255]), (2, [0, 17, 255]), (COOKIE, [0, 98, 255])] {
            for value in values {
                let mut other = bytes.clone();
                other[at] = value;
                assert_eq!(Packet::decode(&other), None, "byte {at} is {value}");
            }
        }
    }

    #[test]
    fn fields_have_one_length() {
        let options =
            packet(vec![(1, vec![1, 2, 3, 4, 5]), (3, vec![]), (6, vec![1, 2, 3, 4, 5, 6, 7, 8])]).options;
        assert_eq!([1, 3, 5].map(|code| options.first::<4>(code)), [None; 3]);
        assert_eq!((options.first(6), fields::<4>(options.get(6).unwrap()).len()), (Some([1, 2, 3, 4]), 2));
    }

    proptest! {
        /// Any bytes, and any change of a message, decode to a message or to none.
        #[test]
        fn random_bytes(
            random in prop::collection::vec(any::<u8>(), 0..400),
            mutations in prop::collection::vec((0..600_usize, any::<u8>()), 0..8),
            areas in 0..4_u8,
            len in 0..600_usize,
        ) {
            let _ = Packet::decode(&random);
            let mut bytes = packet(vec![(OVERLOAD, vec![areas]), (61, vec![7; 300])]).encode();
            bytes[SNAME..SNAME + 64.min(random.len())].copy_from_slice(&random[..64.min(random.len())]);
            bytes.extend(&random);
            for (at, value) in mutations {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            bytes.truncate(len);
            let _ = Packet::decode(&bytes);
        }

        #[test]
        fn options_survive(options in prop::collection::btree_map(1..255_u8, prop::collection::vec(any::<u8>(), 1..600), 0..6)) {
            let mut options: Vec<_> = options.into_iter().collect();
            options.retain(|(code, _)| *code != OVERLOAD);
            let packet = packet(options);
            prop_assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }
    }
}

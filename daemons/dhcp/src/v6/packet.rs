//! The format of DHCPv6 messages: type, transaction ID and options. Pure.
//!
//! Any host on the link can send such a message, so decoding never fails on the content of an option: one that is cut off ends
//! its area.
//!
//! # References
//! RFC 8415, sections 8 and 21.1.

/// A message that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) kind: u8,
    /// 24 bits.
    pub(crate) xid: u32,
    pub(crate) options: Options<'a>,
}

impl<'a> Packet<'a> {
    /// Decodes a message between client and server.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let ([kind, a, b, c], options) = bytes.split_first_chunk()?;
        Some(Packet { kind: *kind, xid: u32::from_be_bytes([0, *a, *b, *c]), options: Options(options) })
    }
}

/// The beginning of a message; its options follow.
pub(crate) fn header(kind: u8, xid: u32) -> Vec<u8> {
    let [_, a, b, c] = xid.to_be_bytes();
    vec![kind, a, b, c]
}

/// Appends an option. Those of a client are short.
pub(crate) fn append(bytes: &mut Vec<u8>, code: u16, content: &[u8]) {
    bytes.extend(code.to_be_bytes());
    bytes.extend((content.len() as u16).to_be_bytes());
    bytes.extend(content);
}

/// Options as code and content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options<'a>(pub(crate) &'a [u8]);

impl<'a> Options<'a> {
    /// The contents of all options with this code.
    pub(crate) fn all(self, code: u16) -> impl Iterator<Item = &'a [u8]> {
        self.filter(move |(found, _)| *found == code).map(|(_, content)| content)
    }

    /// The content of the first option with this code. RFC 8415 allows only one of most options.
    pub(crate) fn get(self, code: u16) -> Option<&'a [u8]> {
        self.all(code).next()
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let ([a, b, c, d], rest) = self.0.split_first_chunk()?;
        let (content, rest) = rest.split_at_checked(u16::from_be_bytes([*c, *d]).into())?;
        self.0 = rest;
        Some((u16::from_be_bytes([*a, *b]), content))
    }
}

#[cfg(test)]
mod tests {
    use dhcproto::v6::{Decodable as _, DhcpOption, Encodable as _, Message, MessageType, OptionCode};

    use super::*;

    #[test]
    fn another_decoder_reads_the_same() {
        let mut bytes = header(3, 0x0001_0203);
        append(&mut bytes, 1, &[0, 4, 9]);
        append(&mut bytes, 7, &[255]);
        let message = Message::from_bytes(&bytes).unwrap();
        assert_eq!((message.msg_type(), message.xid_num()), (MessageType::Request, 0x0001_0203));
        assert_eq!(message.opts().get(OptionCode::Preference), Some(&DhcpOption::Preference(255)));
        let again = message.to_vec().unwrap();
        let packet = Packet::decode(&again).unwrap();
        assert_eq!((packet.kind, packet.xid), (3, 0x0001_0203));
        assert_eq!(packet.options.collect::<Vec<_>>(), [(1, &[0, 4, 9][..]), (7, &[255])]);
    }

    #[test]
    fn an_option_that_is_cut_off_ends_the_options() {
        let mut bytes = header(7, 1);
        for content in [&b"one"[..], b"two", b""] {
            append(&mut bytes, 9, content);
        }
        let whole = bytes.len();
        bytes.extend([0, 9, 0, 4, b'c', b'u', b't']);
        for len in 0..bytes.len() {
            let found = Packet::decode(&bytes[..len]).map(|packet| packet.options.all(9).count());
            let expected = [4, 11, 18, whole].iter().filter(|end| len >= **end).count();
            assert_eq!(found, expected.checked_sub(1), "{len} bytes");
        }
        assert_eq!(Packet::decode(&bytes).unwrap().options.get(9), Some(&b"one"[..]));
    }
}

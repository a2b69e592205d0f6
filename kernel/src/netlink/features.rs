//! Offload features of a link, such as checksums and segmentation: ethtool's family of generic netlink.
//!
//! # References
//! linux/ethtool_netlink.h, linux/genetlink.h; Documentation/networking/ethtool-netlink.rst.

use std::collections::BTreeMap;

use super::error::Error;
use super::generic::Family;
use super::message::{Message, attrs, find_attr, text};

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 1 << 1;
const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;

/// The features of a link by the kernel's names, such as `tx-tcp-segmentation`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Those that can be changed.
    pub changeable: Vec<String>,
    /// Those that are switched on. One may be inactive because it needs another one.
    pub wanted: Vec<String>,
    /// Those that the link uses.
    pub active: Vec<String>,
}

/// A socket for the features of the links in one network namespace.
pub struct Ethtool(Family);

impl Ethtool {
    /// Opens the socket in the caller's network namespace.
    ///
    /// # Errors
    /// `ENOENT` if the kernel was built without ethtool over netlink (before Linux 5.6, or by choice).
    pub fn open() -> Result<Self, Error> {
        Family::open("ethtool").map(Ethtool)
    }

    /// The features of the link with this index.
    pub fn features(&mut self, link: u32) -> Result<Features, Error> {
        let header = |m: Message| m.attr_u32(ETHTOOL_A_HEADER_DEV_INDEX, link);
        let request = self.0.message(ETHTOOL_MSG_FEATURES_GET, 0).nest(ETHTOOL_A_FEATURES_HEADER, header);
        let bodies = self.0.socket.request(request.one_answer())?;
        Ok(bodies.first().map(|body| parse(body)).unwrap_or_default())
    }

    /// Switches features of the link on or off. The kernel ignores those that it does not let change.
    pub fn set(&mut self, link: u32, features: &BTreeMap<String, bool>) -> Result<(), Error> {
        self.0.socket.request(set(self.0.message(ETHTOOL_MSG_FEATURES_SET, 0), link, features)).map(drop)
    }
}

fn set(message: Message, link: u32, features: &BTreeMap<String, bool>) -> Message {
    let header = |m: Message| {
        m.attr_u32(ETHTOOL_A_HEADER_DEV_INDEX, link).attr_u32(ETHTOOL_A_HEADER_FLAGS, ETHTOOL_FLAG_OMIT_REPLY)
    };
    let bit = |m: Message, (name, on): (&String, &bool)| {
        m.nest(ETHTOOL_A_BITSET_BITS_BIT, |m| {
            let m = m.attr_text(ETHTOOL_A_BITSET_BIT_NAME, name);
            if *on { m.attr(ETHTOOL_A_BITSET_BIT_VALUE, &[]) } else { m }
        })
    };
    message
        .nest(ETHTOOL_A_FEATURES_HEADER, header)
        .nest(ETHTOOL_A_FEATURES_WANTED, |m| m.nest(ETHTOOL_A_BITSET_BITS, |m| features.iter().fold(m, bit)))
}

/// The features in the kernel's answer.
pub fn parse(body: &[u8]) -> Features {
    let attributes = body.get(4..).unwrap_or_default();
    let names = |kind| find_attr(attributes, kind).map(set_bits).unwrap_or_default();
    Features {
        changeable: names(ETHTOOL_A_FEATURES_HW),
        wanted: names(ETHTOOL_A_FEATURES_WANTED),
        active: names(ETHTOOL_A_FEATURES_ACTIVE),
    }
}

/// The names of the bits that are set. A list without a mask has only those; one with a mask marks them.
fn set_bits(bitset: &[u8]) -> Vec<String> {
    let has_mask = find_attr(bitset, ETHTOOL_A_BITSET_NOMASK).is_none();
    let bits = attrs(find_attr(bitset, ETHTOOL_A_BITSET_BITS).unwrap_or_default());
    bits.filter(|(_, bit)| !has_mask || find_attr(bit, ETHTOOL_A_BITSET_BIT_VALUE).is_some())
        .filter_map(|(_, bit)| find_attr(bit, ETHTOOL_A_BITSET_BIT_NAME).map(text))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::generic::message;
    use super::super::message::{HEADER, u16_at};
    use super::*;

    #[test]
    fn a_request_is_a_bitset_with_a_mask() {
        let wanted = [("rx-gro".to_owned(), true), ("tx-checksum-sctp".to_owned(), false)].into();
        let bytes = set(message(20, 0, ETHTOOL_MSG_FEATURES_SET), 3, &wanted).finish(1, 0).unwrap();
        assert_eq!((u16_at(&bytes, 4), &bytes[HEADER..HEADER + 4]), (20, &[12, 1, 0, 0][..]));
        let bitset = find_attr(&bytes[HEADER + 4..], ETHTOOL_A_FEATURES_WANTED).unwrap();
        assert_eq!(set_bits(bitset), ["rx-gro"]);
        assert_eq!(attrs(find_attr(bitset, ETHTOOL_A_BITSET_BITS).unwrap()).count(), 2);
    }

    #[test]
    fn lists_with_and_without_a_mask() {
        let bit = |m: Message, name| {
            m.nest(ETHTOOL_A_BITSET_BITS_BIT, |m| m.attr_text(ETHTOOL_A_BITSET_BIT_NAME, name))
        };
        let answer = message(20, 0, 0)
            .nest(ETHTOOL_A_FEATURES_HW, |m| m.nest(ETHTOOL_A_BITSET_BITS, |m| bit(m, "fixed")))
            .nest(ETHTOOL_A_FEATURES_ACTIVE, |m| {
                m.attr(ETHTOOL_A_BITSET_NOMASK, &[]).nest(ETHTOOL_A_BITSET_BITS, |m| bit(bit(m, "a"), "b"))
            });
        let features = parse(&answer.finish(1, 0).unwrap()[HEADER..]);
        let active = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(features, Features { active, ..Features::default() });
        assert_eq!(parse(&[]), Features::default());
    }
}

//! The types of the keys and values of sets and maps.

/// The type of one part of a key or value, with its number in `nft`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// An IPv4 address.
    Ipv4Addr = 7,
    /// An IPv6 address.
    Ipv6Addr = 8,
    /// A transport protocol.
    Proto = 12,
    /// A port.
    Service = 13,
    /// A packet mark, in the byte order of the host.
    Mark = 19,
    /// An interface name.
    IfName = 41,
}

impl DataType {
    /// The length in bytes in a concatenation.
    pub(super) const fn len(self) -> u32 {
        match self {
            DataType::Ipv6Addr | DataType::IfName => 16,
            DataType::Ipv4Addr | DataType::Proto | DataType::Service | DataType::Mark => 4,
        }
    }

    /// The length in bytes without the padding in a concatenation.
    pub(super) const fn size(self) -> u32 {
        match self {
            DataType::Proto => 1,
            DataType::Service => 2,
            other => other.len(),
        }
    }

    /// The type number of a concatenation (6 bits for each part) and its length in bytes.
    pub(super) fn concatenation(parts: &[DataType]) -> (u32, u32) {
        parts.iter().fold((0, 0), |(number, len), part| (number << 6 | *part as u32, len + part.len()))
    }
}

/// The key of a link in a set of links: its name in 16 bytes.
pub fn link_key(name: &str) -> Vec<u8> {
    let mut key = name.as_bytes().to_vec();
    key.resize(16, 0);
    key
}

/// The name of the link in a key, or in the first part of one.
pub fn link_of(key: &[u8]) -> String {
    let name = key.get(..16).unwrap_or(key);
    String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()
}

/// The type of the values of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<'a> {
    /// A concatenation of these types.
    Of(&'a [DataType]),
    /// A verdict.
    Verdict,
}

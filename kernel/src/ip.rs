//! The two families of IP addresses, addresses as the bytes of netlink messages and packet headers, and the checksum of these.

use std::fmt;
use std::net::IpAddr;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both families. A family is its own index in an array of this order: `ALL[family as usize] == family`.
    pub const ALL: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

    /// The family of an address.
    pub const fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
    }

    /// `AF_INET` or `AF_INET6`, which equal `NFPROTO_IPV4` and `NFPROTO_IPV6`.
    pub const fn number(self) -> u8 {
        match self {
            IpFamily::V4 => 2,
            IpFamily::V6 => 10,
        }
    }

    /// The length of an address in bits, which is the prefix length of a single address.
    pub const fn bits(self) -> u8 {
        match self {
            IpFamily::V4 => 32,
            IpFamily::V6 => 128,
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        })
    }
}

/// The address's bytes in network byte order: 4 for IPv4, 16 for IPv6.
pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The address with these bytes, see [`octets`]. `None` if they are neither 4 nor 16.
pub fn from_octets(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

/// The Internet checksum (RFC 1071), as a header has it. After an odd number of bytes a zero is added.
pub fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // The folds leave 16 bits.
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_are_encoded_and_decoded() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(from_octets(&octets(ip)), Some(ip));
            assert_eq!(octets(ip).len() * 8, usize::from(IpFamily::of(ip).bits()));
        }
        assert_eq!(octets([192, 0, 2, 1].into()), [192, 0, 2, 1]);
        assert_eq!(from_octets(&[192, 0, 2]), None);
    }

    #[test]
    fn the_checksum_of_the_rfc() {
        let example = [0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&example), [0x22, 0x0d]);
        assert_eq!(checksum(&[&example[..], &[0x22, 0x0d]].concat()), [0, 0]);
        assert_eq!((checksum(&[0xff; 4]), checksum(&[1])), ([0, 0], [0xfe, 0xff]));
    }
}

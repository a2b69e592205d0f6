//! IP addresses as the bytes of netlink messages and packet headers.

use std::net::IpAddr;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_are_encoded_and_decoded() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(from_octets(&octets(ip)), Some(ip));
        }
        assert_eq!(octets([192, 0, 2, 1].into()), [192, 0, 2, 1]);
        assert_eq!(from_octets(&[192, 0, 2]), None);
    }
}

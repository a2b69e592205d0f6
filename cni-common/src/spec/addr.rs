//! Parsing of addresses and prefixes in configurations and results.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// Parses an IP address. An IPv4-mapped IPv6 address becomes the IPv4 address, as in Go. Leading zeros and
/// zones are errors.
///
/// # Errors
/// The reference's text, `invalid IP address: X`.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map(|ip: IpAddr| ip.to_canonical()).map_err(|_| format!("invalid IP address: {text}"))
}

/// Parses an address with prefix length, such as `10.1.2.3/24`, and keeps the host bits.
///
/// An IPv4-mapped address becomes IPv4 if its prefix length is at least 96: `::ffff:10.1.0.5/120` is
/// `10.1.0.5/24`.
///
/// # Errors
/// The reference's texts: `invalid CIDR address: X`, or `IPNet IP and Mask version mismatch` if an
/// IPv4-mapped address has a prefix length below 96.
pub fn parse_cidr(text: &str) -> Result<IpNetwork, String> {
    let bad = || format!("invalid CIDR address: {text}");
    let (ip, prefix) = text.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let mut prefix: u8 = prefix.parse().map_err(|_| bad())?;
    let canonical = ip.to_canonical();
    if canonical != ip {
        if !(96..=128).contains(&prefix) {
            return Err("IPNet IP and Mask version mismatch".to_owned());
        }
        prefix -= 96;
    }
    IpNetwork::new(canonical, prefix).map_err(|_| bad())
}

/// Parses an address as runtimes request it in `ips`: a prefix length is optional and ignored.
///
/// # Errors
/// The reference's text, `invalid IP address X` (without a colon).
pub fn parse_ip_or_cidr(text: &str) -> Result<IpAddr, String> {
    let parsed = if text.contains('/') { parse_cidr(text).map(|net| net.ip()) } else { parse_ip(text) };
    parsed.map_err(|_| format!("invalid IP address {text}"))
}

/// The destination of the default route in the family of `ip`: `0.0.0.0/0` or `::/0`.
pub fn default_route(ip: IpAddr) -> IpNetwork {
    let any: IpAddr = if ip.is_ipv4() { [0, 0, 0, 0].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Cannot fail: a prefix length of 0 is valid in both families.
    IpNetwork::new(any, 0).unwrap_or_else(|_| IpNetwork::from(any))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(parse_ip("::ffff:10.1.2.4").unwrap().to_string(), "10.1.2.4");
        assert_eq!(parse_ip("2001:DB8:0::1").unwrap().to_string(), "2001:db8::1");
        for bad in ["", "10.1.2", "010.1.2.3", "fe80::1%eth0", "x", " 10.1.2.3"] {
            assert_eq!(parse_ip(bad).unwrap_err(), format!("invalid IP address: {bad}"));
        }
    }

    #[test]
    fn prefixes_keep_host_bits() {
        assert_eq!(parse_cidr("10.1.2.3/24").unwrap().to_string(), "10.1.2.3/24");
        assert_eq!(parse_cidr("::ffff:10.1.0.5/120").unwrap().to_string(), "10.1.0.5/24");
        assert_eq!(parse_cidr("::ffff:10.1.2.0/64").unwrap_err(), "IPNet IP and Mask version mismatch");
        for bad in [
            "",
            "10.1.2.3",
            "10.1.2.3/",
            "10.1.2.3/33",
            "10.1.2.3/+4",
            "010.1.2.0/24",
            "10.1.2.0/255.0.0.0",
            "x/8",
        ] {
            assert_eq!(parse_cidr(bad).unwrap_err(), format!("invalid CIDR address: {bad}"));
        }
    }

    #[test]
    fn requested_addresses() {
        assert_eq!(parse_ip_or_cidr("10.1.2.3/16").unwrap().to_string(), "10.1.2.3");
        assert_eq!(parse_ip_or_cidr("10.1.2.3").unwrap().to_string(), "10.1.2.3");
        assert_eq!(parse_ip_or_cidr("bogus").unwrap_err(), "invalid IP address bogus");
    }

    #[test]
    fn default_routes() {
        assert_eq!(default_route("10.0.0.1".parse().unwrap()).to_string(), "0.0.0.0/0");
        assert_eq!(default_route("fd00::1".parse().unwrap()).to_string(), "::/0");
    }
}

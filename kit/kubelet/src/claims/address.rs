//! The addresses of a claim's parameters. Pure.

use ipnetwork::IpNetwork;

/// Checks an address with a prefix length.
pub(super) fn prefix(text: &str) -> Result<IpNetwork, String> {
    let network = text.parse().ok().filter(|_| text.contains('/'));
    network.ok_or_else(|| format!("{text:?} is no IP address with a prefix length"))
}

/// Checks the addresses of a device: an interface can have each of them, and once.
pub(super) fn addresses(texts: &[String]) -> Result<Vec<IpNetwork>, String> {
    let mut addresses: Vec<IpNetwork> = Vec::new();
    for text in texts {
        let address = prefix(text)?;
        let ip = address.ip();
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || address.prefix() == 0 {
            return Err(format!("{text:?} is no address of an interface"));
        }
        if addresses.iter().any(|other| other.ip() == ip) {
            return Err(format!("{ip} is there twice"));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

//! The settings in an answer: name servers and a search list. Pure.
//!
//! # References
//! RFC 3646.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use ferrule_dhcp::wire::Lease;

use super::packet::Options;
use crate::packet::fields;
use crate::settings::search;

pub(crate) const NAME_SERVERS: u16 = 23;
pub(crate) const SEARCH: u16 = 24;

/// The most name servers. The C library uses three.
const MOST_SERVERS: usize = 16;

/// Whether a host can have this address. Link-local ones are refused: they mean nothing without their link.
pub(crate) fn is_host(address: Ipv6Addr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !is_special && !address.is_unicast_link_local() && address.to_ipv4_mapped().is_none()
}

/// The settings, and the codes of options with something that cannot be used.
pub(crate) fn settings(options: Options<'_>, own: Ipv6Addr) -> (Lease, BTreeSet<u16>) {
    let mut ignored = BTreeSet::new();
    let mut lease = Lease { address: format!("{own}/128"), ..Lease::default() };
    if let Some(content) = options.get(NAME_SERVERS) {
        let servers = fields::<16>(content).iter().copied().map(Ipv6Addr::from);
        let usable = servers.filter(|server| is_host(*server) && *server != own);
        lease.nameservers = usable.take(MOST_SERVERS).map(|server| server.to_string()).collect();
        if lease.nameservers.len() * 16 != content.len() || content.is_empty() {
            ignored.insert(NAME_SERVERS);
        }
    }
    if let Some(content) = options.get(SEARCH) {
        let (names, is_whole) = search(content);
        lease.search = names;
        if !is_whole {
            ignored.insert(SEARCH);
        }
    }
    (lease, ignored)
}

#[cfg(test)]
mod tests {
    use super::super::packet::append;
    use super::*;

    const OWN: &str = "fd00::5";

    fn read(list: &[(u16, &[u8])]) -> (Lease, Vec<u16>) {
        let mut bytes = Vec::new();
        list.iter().for_each(|(code, content)| append(&mut bytes, *code, content));
        let (lease, ignored) = settings(Options(&bytes), OWN.parse().unwrap());
        (lease, ignored.into_iter().collect())
    }

    fn octets(text: &str) -> Vec<u8> {
        text.parse::<Ipv6Addr>().unwrap().octets().to_vec()
    }

    #[test]
    fn name_servers_of_other_hosts() {
        let list = ["::", "::1", "ff02::1", "fe80::1", "::ffff:10.0.0.1", OWN, "fd00::2", "2001:db8::1"];
        let content: Vec<u8> = list.into_iter().flat_map(octets).collect();
        let (lease, ignored) = read(&[(NAME_SERVERS, &content)]);
        assert_eq!((lease.address.as_str(), ignored), ("fd00::5/128", vec![NAME_SERVERS]));
        assert_eq!(lease.nameservers, ["fd00::2", "2001:db8::1"]);
        assert!(read(&[(NAME_SERVERS, &octets("fd00::2"))]).1.is_empty());
        for broken in [0, 15, 17] {
            let (lease, ignored) = read(&[(NAME_SERVERS, &vec![0xfd; broken])]);
            assert_eq!((lease.nameservers.len(), ignored), (0, vec![NAME_SERVERS]), "{broken} bytes");
        }
        let many = octets("fd00::2").repeat(1000);
        assert_eq!(read(&[(NAME_SERVERS, &many)]).0.nameservers.len(), MOST_SERVERS);
    }

    #[test]
    fn names_for_resolv_conf() {
        let (lease, ignored) = read(&[(SEARCH, b"\x01a\x07example\0\x09a\nnext b1\0\x01c\0")]);
        assert_eq!((lease.search, ignored), (vec!["a.example".to_owned(), "c".to_owned()], vec![SEARCH]));
        assert_eq!(read(&[(SEARCH, b"\x01a\0"), (SEARCH, b"\x01b\0")]).0.search, ["a"]);
    }
}

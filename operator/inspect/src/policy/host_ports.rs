//! What becomes of a host port: the rules of portmap on this node, Ferrule's and the reference's, with nf_tables and with iptables.

use std::net::SocketAddr;

use cni_common::spec::CniError;
use ferrule_kernel::netlink::Socket;
use ferrule_portmap::plan::HostPort;
use ferrule_portmap::{list, nft, reference};

use super::services::{Kind, Service, protocol_name};

/// Where a host port leads, with the address that it is for, if it is not for all addresses of the node.
struct Found {
    is_for_one: bool,
    target: SocketAddr,
    place: &'static str,
}

/// The container behind this address of the node, port and protocol; `None` if no host port is for it.
///
/// # Errors
/// The kernel refuses to list rules, or a program of iptables fails.
pub fn find(socket: &mut Socket, to: SocketAddr, protocol: u8) -> Result<Option<Service>, CniError> {
    let is_it = |HostPort { key, target, .. }: &HostPort| {
        (key.proto.number(), key.port) == (protocol, to.port())
            && target.is_ipv4() == to.is_ipv4()
            && key.host_ip.is_none_or(|ip| ip == to.ip())
    };
    let found = |host_port: &HostPort, place| Found {
        is_for_one: host_port.key.host_ip.is_some(),
        target: host_port.target,
        place,
    };
    let mut all = Vec::new();
    for owned in nft::list(socket)?.iter().filter(|owned| is_it(&owned.host_port)) {
        all.push(found(&owned.host_port, "table inet cni_portmap"));
    }
    for (_, host_port) in reference::list(socket)? {
        all.extend(host_port.filter(is_it).map(|one| found(&one, "the reference's table cni_hostport")));
    }
    for text in list::chains(socket)?.iter().flat_map(|chain| &chain.host_ports) {
        all.extend(parse(text, to, protocol));
    }
    // That of one address comes before those of all.
    let chosen = all.iter().find(|one| one.is_for_one).or(all.first());
    Ok(chosen.map(|Found { target, place, .. }| Service {
        kind: Kind::HostPort,
        place: (*place).to_owned(),
        backends: [*target].into(),
        ..Service::default()
    }))
}

/// `8080/tcp -> 10.1.2.3:80`, with `ADDRESS:` or `ADDRESS/128:` before it if it is for one address.
fn parse(text: &str, to: SocketAddr, protocol: u8) -> Option<Found> {
    let (key, target) = text.split_once(" -> ")?;
    let target: SocketAddr = target.parse().ok()?;
    let host = key.strip_suffix(&format!("{}/{}", to.port(), protocol_name(protocol)))?;
    let is_for = |host: &str| host.trim_end_matches("/128").parse() == Ok(to.ip());
    let is_it = host.is_empty() || host.strip_suffix(':').is_some_and(is_for);
    let place = "the table nat of iptables";
    (is_it && target.is_ipv4() == to.is_ipv4()).then_some(Found {
        is_for_one: !host.is_empty(),
        target,
        place,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chains_of_iptables_name_address_and_port() {
        for (text, to, target) in [
            ("8080/tcp -> 10.1.2.3:80", "192.0.2.1:8080", Some(("10.1.2.3:80", false))),
            ("192.0.2.1:8080/tcp -> 10.1.2.3:80", "192.0.2.1:8080", Some(("10.1.2.3:80", true))),
            ("192.0.2.2:8080/tcp -> 10.1.2.3:80", "192.0.2.1:8080", None),
            ("18080/tcp -> 10.1.2.3:80", "192.0.2.1:8080", None),
            ("8080/udp -> 10.1.2.3:80", "192.0.2.1:8080", None),
            ("8080/tcp -> 10.1.2.3:80", "[fd00::1]:8080", None),
            ("fd00::1/128:8080/tcp -> [fd00:1::3]:80", "[fd00::1]:8080", Some(("[fd00:1::3]:80", true))),
            ("8080/tcp -> [fd00:1::3]:80", "[fd00::1]:8080", Some(("[fd00:1::3]:80", false))),
            ("x", "192.0.2.1:8080", None),
        ] {
            let found = parse(text, to.parse().unwrap(), 6);
            let found = found.map(|one| (one.target.to_string(), one.is_for_one));
            assert_eq!(found, target.map(|(target, is_for_one)| (target.to_owned(), is_for_one)), "{text}");
        }
    }
}

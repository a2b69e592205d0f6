//! Raw packets of pods, and ears that hear which of them arrive. Each packet has a mark in its data.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use cni_lab::Place;
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

use super::packets::ICMPV6;

const MARK: &str = "hostile ";
/// How often its data has the mark: each fragment has one.
const TIMES: usize = 4;

/// The data of a packet: 16 bytes, four times.
pub(crate) fn marked(number: u32) -> Vec<u8> {
    format!("{MARK}{number:08}").repeat(TIMES).into_bytes()
}

/// Sends packets as they are.
pub(crate) struct Gun {
    sockets: [Socket; 2],
    /// The number of the link, for link-local destinations.
    link: u32,
}

impl Gun {
    pub(crate) fn of(place: &impl Place) -> Gun {
        let raw = |domain| Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)));
        let open = || [Domain::IPV4, Domain::IPV6].map(|domain| raw(domain).unwrap());
        let sockets = place.run(open).unwrap();
        let link = place.sh("ip -o link show eth0 | cut -d: -f1").unwrap().trim().parse().unwrap();
        Gun { sockets, link }
    }

    /// Sends the packet the way to this address. The kernel may refuse it.
    pub(crate) fn send(&self, packet: &[u8], to: IpAddr) {
        let socket = &self.sockets[usize::from(to.is_ipv6())];
        let to: SocketAddr = match to {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, 0, 0, self.link).into(),
            _ => (to, 0).into(),
        };
        let _ = socket.send_to(packet, &to.into());
    }
}

/// Hears packets.
pub(crate) struct Ear {
    sockets: Vec<Socket>,
    heard: BTreeSet<u32>,
}

impl Ear {
    /// All packets on the links of the place.
    pub(crate) fn on_links(place: &impl Place) -> Ear {
        let all = Protocol::from(i32::from(u16::try_from(libc::ETH_P_ALL).unwrap().to_be()));
        let open = || Socket::new(Domain::PACKET, Type::DGRAM, Some(all)).unwrap();
        Ear::new(vec![place.run(open).unwrap()])
    }

    /// What the place's own sockets get, of these protocols.
    pub(crate) fn of_processes(place: &impl Place, protocols: &[u8]) -> Ear {
        let open = || {
            let raw =
                |domain, number: u8| Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(number))));
            let of = |number: &u8| [(Domain::IPV4, *number), (Domain::IPV6, *number)];
            let all = protocols
                .iter()
                .flat_map(of)
                .filter(|(domain, number)| *number != if *domain == Domain::IPV4 { ICMPV6 } else { 1 });
            all.map(|(domain, number)| raw(domain, number).unwrap()).collect()
        };
        Ear::new(place.run(open).unwrap())
    }

    fn new(sockets: Vec<Socket>) -> Ear {
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
            socket.set_recv_buffer_size(8 << 20).unwrap();
        }
        Ear { sockets, heard: BTreeSet::new() }
    }

    /// The marks so far.
    pub(crate) fn heard(&mut self) -> &BTreeSet<u32> {
        let mut buffer = [0; 4096];
        for mut socket in &self.sockets {
            while let Ok(length) = socket.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]);
                let numbers = text.split(MARK).skip(1).filter_map(|rest| rest.get(..8)?.parse::<u32>().ok());
                self.heard.extend(numbers);
            }
        }
        &self.heard
    }
}

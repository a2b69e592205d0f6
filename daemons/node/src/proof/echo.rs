//! Sockets for echo requests in the endpoint's namespace. The kernel gives each one the answers to its own requests only, so a flood
//! of others costs the daemon nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netns::enter;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use super::endpoint::is_namespace;
use super::schedule::{Key, Target};
use crate::probe::{HEADER, Token, request};

/// The requests that are remembered for a late answer.
const REMEMBERED: u16 = 512;

/// A socket of each family.
pub(super) struct Echo {
    sockets: [UdpSocket; 2],
    token: Token,
    number: u16,
    asked: BTreeMap<u16, (Key, IpAddr)>,
    /// Device and inode of the namespace.
    netns: (u64, u64),
}

impl Echo {
    /// Opens the sockets in the namespace at this path.
    pub(super) fn open(path: &Path) -> Result<Echo> {
        let netns = File::open(path).with_context(|| path.display().to_string())?;
        if !is_namespace(&netns) {
            bail!("{} is no namespace", path.display());
        }
        let mut token = Token::default();
        getrandom::fill(&mut token)?;
        let open = |family| socket(family).with_context(|| format!("open a socket for {family}"));
        let sockets = enter(&netns, || -> Result<_> { Ok([open(IpFamily::V4)?, open(IpFamily::V6)?]) })
            .with_context(|| format!("enter {}", path.display()))??;
        let meta = netns.metadata()?;
        let netns = (meta.dev(), meta.ino());
        let [v4, v6] = sockets.map(|socket| UdpSocket::from_std(socket.into()));
        Ok(Echo { sockets: [v4?, v6?], token, number: 0, asked: BTreeMap::new(), netns })
    }

    /// Whether this path leads to the sockets' namespace.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.netns)
    }

    /// Sends a request. It must fit into one packet on each link of the way.
    pub(super) async fn send(&mut self, key: Key, target: Target) -> io::Result<()> {
        let family = IpFamily::of(target.address);
        self.number = self.number.wrapping_add(1);
        self.asked.remove(&self.number.wrapping_sub(REMEMBERED));
        self.asked.insert(self.number, (key, target.address));
        let header = if family == IpFamily::V4 { 20 } else { 40 };
        let mut message = request(family, self.number.into(), &self.token);
        message.resize(usize::from(target.size).saturating_sub(header).max(message.len()), 0);
        self.sockets[family as usize].send_to(&message, (target.address, 0)).await.map(drop)
    }

    /// The next answer to a request.
    pub(super) async fn answer(&mut self) -> Key {
        // The payload is ours, as the number is: its beginning is enough.
        let (mut buffer4, mut buffer6) = ([0; 64], [0; 64]);
        loop {
            let [v4, v6] = &self.sockets;
            let (kind, buffer, received) = tokio::select! {
                received = v4.recv_from(&mut buffer4) => (0, &buffer4, received),
                received = v6.recv_from(&mut buffer6) => (129, &buffer6, received),
            };
            // An error belongs to an earlier request, which will have no answer.
            let Ok((len, from)) = received else { continue };
            if let Some(number) = number(&buffer[..len], kind, &self.token)
                && self.asked.get(&number).is_some_and(|(_, address)| *address == from.ip())
                && let Some((key, _)) = self.asked.remove(&number)
            {
                return key;
            }
        }
    }
}

fn socket(family: IpFamily) -> io::Result<Socket> {
    let (domain, protocol) = match family {
        IpFamily::V4 => (Domain::IPV4, Protocol::ICMPV4),
        IpFamily::V6 => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
    socket.set_nonblocking(true)?;
    // Packets are neither divided nor held back by what the kernel has learned of the way.
    match family {
        IpFamily::V4 => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?,
        IpFamily::V6 => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?,
    }
    Ok(socket)
}

/// The number of our request that this message answers.
fn number(message: &[u8], kind: u8, token: &Token) -> Option<u16> {
    let (header, rest) = message.split_at_checked(HEADER)?;
    (header[0] == kind && rest.starts_with(token)).then(|| u16::from_be_bytes([header[6], header[7]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_to_our_request_counts() {
        let token = [7; 8];
        let mut message = request(IpFamily::V6, 0x0203, &token);
        message.extend([0; 20]);
        assert_eq!(number(&message, 128, &token), Some(0x0203));
        assert_eq!(number(&message, 129, &token), None, "our own request");
        assert_eq!(number(&message, 128, &[8; 8]), None, "of another process");
        (0..HEADER + 8).for_each(|len| assert_eq!(number(&message[..len], 128, &token), None));
    }
}

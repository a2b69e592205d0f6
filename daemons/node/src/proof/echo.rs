//! Echo requests from the endpoint's namespace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netns::enter;
use ferrule_kernel::ping;
use tokio::net::UdpSocket;

use super::endpoint::is_namespace;
use super::schedule::Target;
use crate::probe::{Token, request};

/// The requests that are remembered for a late answer.
const REMEMBERED: u16 = 512;

/// A socket of each family. A request has a key.
pub(super) struct Echo<K> {
    sockets: [UdpSocket; 2],
    token: Token,
    number: u16,
    asked: BTreeMap<u16, (K, IpAddr)>,
    /// Device and inode of the namespace.
    netns: (u64, u64),
}

impl<K> Echo<K> {
    /// Opens the sockets in the namespace at this path.
    pub(super) fn open(path: &Path) -> Result<Echo<K>> {
        let netns = File::open(path).with_context(|| path.display().to_string())?;
        if !is_namespace(&netns) {
            bail!("{} is no namespace", path.display());
        }
        let mut token = Token::default();
        getrandom::fill(&mut token)?;
        let open = |family| {
            let socket =
                ping::socket(family).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
            socket.with_context(|| format!("open a socket for {family}"))
        };
        let sockets = enter(&netns, || -> Result<_> { Ok([open(IpFamily::V4)?, open(IpFamily::V6)?]) })
            .with_context(|| format!("enter {}", path.display()))??;
        let meta = netns.metadata()?;
        let netns = (meta.dev(), meta.ino());
        let [v4, v6] = sockets.map(UdpSocket::from_std);
        Ok(Echo { sockets: [v4?, v6?], token, number: 0, asked: BTreeMap::new(), netns })
    }

    /// Whether this path leads to the sockets' namespace.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.netns)
    }

    /// Sends a request with a mark behind the token. It must fit into one packet on each link of the way.
    pub(super) async fn send(&mut self, key: K, target: Target, mark: &[u8]) -> io::Result<()> {
        let family = IpFamily::of(target.address);
        self.number = self.number.wrapping_add(1);
        self.asked.remove(&self.number.wrapping_sub(REMEMBERED));
        self.asked.insert(self.number, (key, target.address));
        let header = if family == IpFamily::V4 { 20 } else { 40 };
        let mut message = request(family, self.number.into(), &self.token);
        message.extend(mark);
        message.resize(usize::from(target.size).saturating_sub(header).max(message.len()), 0);
        self.sockets[family as usize].send_to(&message, (target.address, 0)).await.map(drop)
    }

    /// The next answer to a request.
    pub(super) async fn answer(&mut self) -> K {
        // The payload is ours, as the number is: its beginning is enough.
        let (mut buffer4, mut buffer6) = ([0; 64], [0; 64]);
        loop {
            let [v4, v6] = &self.sockets;
            let (family, buffer, received) = tokio::select! {
                received = v4.recv_from(&mut buffer4) => (IpFamily::V4, &buffer4, received),
                received = v6.recv_from(&mut buffer6) => (IpFamily::V6, &buffer6, received),
            };
            // An error belongs to an earlier request, which will have no answer.
            let Ok((len, from)) = received else { continue };
            if let Some(number) = number(family, &buffer[..len], &self.token)
                && self.asked.get(&number).is_some_and(|(_, address)| *address == from.ip())
                && let Some((key, _)) = self.asked.remove(&number)
            {
                return key;
            }
        }
    }
}

/// The number of our request that this message answers.
fn number(family: IpFamily, message: &[u8], token: &Token) -> Option<u16> {
    let number = ping::answered(family, message)?;
    message[ping::HEADER..].starts_with(token).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_to_our_request_counts() {
        let token = [7; 8];
        let mut message = request(IpFamily::V6, 0x0203, &token);
        message.extend([0; 20]);
        message[0] = 129;
        assert_eq!(number(IpFamily::V6, &message, &token), Some(0x0203));
        assert_eq!(number(IpFamily::V6, &message, &[8; 8]), None, "of another process");
        (0..ping::HEADER + 8).for_each(|len| assert_eq!(number(IpFamily::V6, &message[..len], &token), None));
    }
}

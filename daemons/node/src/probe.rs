//! ICMP echo requests for `ferrule-node status`.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::{IpFamily, checksum};
use ferrule_kernel::ping::HEADER;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

/// The bytes behind the header. They tell our requests from those of other processes.
pub(crate) type Token = [u8; 8];

/// Asks all addresses at once. Returns how long each took to answer, in their order; `None` if it did not within the limit.
///
/// # Errors
/// The process lacks `CAP_NET_RAW`.
pub async fn probe(addresses: &[IpAddr], limit: Duration) -> Result<Vec<Option<Duration>>> {
    let deadline = Instant::now() + limit;
    let (v4, v6) = tokio::join!(
        probe_family(IpFamily::V4, addresses, deadline),
        probe_family(IpFamily::V6, addresses, deadline)
    );
    Ok(v4?.into_iter().zip(v6?).map(|(v4, v6)| v4.or(v6)).collect())
}

async fn probe_family(
    family: IpFamily,
    addresses: &[IpAddr],
    deadline: Instant,
) -> Result<Vec<Option<Duration>>> {
    let mut answers = Answers::new(family, addresses)?;
    if answers.missing == 0 {
        return Ok(answers.took);
    }
    let socket = open(family).context("open a socket for echo requests")?;
    let mut buffer = [0; 512];
    for (index, address) in
        addresses.iter().enumerate().filter(|(_, address)| IpFamily::of(**address) == family)
    {
        answers.sent[index] = Some(Instant::now());
        let request = request(family, index, &answers.token);
        // An address without a route counts as one that does not answer.
        let _ = timeout_at(deadline, socket.send_to(&request, (*address, 0))).await;
        // The receive buffer has room for the answers of some 200 nodes. tokio looks for them when this task yields.
        tokio::task::yield_now().await;
        while let Ok((len, from)) = socket.try_recv_from(&mut buffer) {
            answers.take(&buffer[..len], from.ip());
        }
    }
    while answers.missing > 0 {
        match timeout_at(deadline, socket.recv_from(&mut buffer)).await {
            Ok(Ok((len, from))) => answers.take(&buffer[..len], from.ip()),
            // The error of an earlier request.
            Ok(Err(_)) => {}
            Err(_) => break,
        }
    }
    Ok(answers.took)
}

/// The requests of one family and their answers.
struct Answers<'a> {
    family: IpFamily,
    addresses: &'a [IpAddr],
    token: Token,
    sent: Vec<Option<Instant>>,
    took: Vec<Option<Duration>>,
    missing: usize,
}

impl<'a> Answers<'a> {
    fn new(family: IpFamily, addresses: &'a [IpAddr]) -> Result<Self> {
        let mut token = Token::default();
        getrandom::fill(&mut token)?;
        let missing = addresses.iter().filter(|address| IpFamily::of(**address) == family).count();
        let (sent, took) = (vec![None; addresses.len()], vec![None; addresses.len()]);
        Ok(Answers { family, addresses, token, sent, took, missing })
    }

    /// Takes a received message.
    fn take(&mut self, bytes: &[u8], from: IpAddr) {
        let Some(number) = answer(self.family, bytes, &self.token) else { return };
        // The number has 16 bits: the address tells which one of several requests it is.
        let mut same = (usize::from(number)..self.addresses.len()).step_by(1 << 16);
        let Some(index) = same.find(|index| self.addresses[*index] == from) else { return };
        if let (Some(sent), None) = (self.sent[index], self.took[index]) {
            self.took[index] = Some(sent.elapsed());
            self.missing -= 1;
        }
    }
}

/// A raw socket. tokio has no type for it, but its UDP socket makes the same system calls.
fn open(family: IpFamily) -> io::Result<UdpSocket> {
    let (domain, protocol) = match family {
        IpFamily::V4 => (Domain::IPV4, Protocol::ICMPV4),
        IpFamily::V6 => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket.into())
}

/// The echo request with the low bits of this index as its number.
pub(crate) fn request(family: IpFamily, index: usize, token: &Token) -> Vec<u8> {
    let kind = if family == IpFamily::V4 { 8 } else { 128 };
    let [.., high, low] = index.to_be_bytes();
    let mut message = [&[kind, 0, 0, 0, token[0], token[1], high, low], &token[..]].concat();
    // The kernel adds the checksum of ICMPv6.
    if family == IpFamily::V4 {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum);
    }
    message
}

/// The number of our request that this message answers.
pub(crate) fn answer(family: IpFamily, bytes: &[u8], token: &Token) -> Option<u16> {
    let (kind, message) = match family {
        // The kernel passes on the IP header too.
        IpFamily::V4 => (0, bytes.get(usize::from(bytes.first()? & 0x0f) * 4..)?),
        IpFamily::V6 => (129, bytes),
    };
    let (header, rest) = message.split_at_checked(HEADER)?;
    (header[0] == kind && rest == token).then(|| u16::from_be_bytes([header[6], header[7]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = [0xff; 8];

    #[test]
    fn only_an_answer_to_our_request_counts() {
        for (family, kind) in [(IpFamily::V4, 0), (IpFamily::V6, 129)] {
            let request = request(family, 0x1_0203, &TOKEN);
            let ip = if family == IpFamily::V4 { vec![0x45; 20] } else { Vec::new() };
            let received = |kind: u8| [&ip[..], &[kind], &request[1..]].concat();
            assert_eq!(answer(family, &received(kind), &TOKEN), Some(0x0203));
            assert_eq!(answer(family, &received(request[0]), &TOKEN), None, "our own request");
            assert_eq!(answer(family, &received(kind), &[1; 8]), None, "of another process");
            for len in 0..received(kind).len() {
                assert_eq!(answer(family, &received(kind)[..len], &TOKEN), None);
            }
        }
    }

    #[test]
    fn the_sum_with_the_checksum_is_all_ones() {
        for index in [0, 1, 0xffff] {
            assert_eq!(checksum(&request(IpFamily::V4, index, &TOKEN)), [0, 0]);
        }
    }
}

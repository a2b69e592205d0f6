//! Sends packets between network namespaces of the node. A socket belongs to the namespace in which it was opened.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use cni_common::netns::Netns;
use ferrule_kernel::netns::enter;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(2);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(2);
/// How many connections of other programs may be open.
const STRANGERS: usize = 64;

/// Where a socket is: in a namespace, or on the node.
#[derive(Clone, Copy)]
pub(super) enum Place<'n> {
    Node,
    In(&'n Netns),
}

impl Place<'_> {
    fn open<T>(self, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Place::Node => open(),
            Place::In(netns) => enter(netns, open)?,
        }
    }
}

/// The first bytes of what the test sends. A pod or another program can send to the test's sockets too, but does not know them.
type Nonce = [u8; 8];

fn nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// Connects from one place to a listener in another one, which has the address `at`; the connection goes to `to`, or there. Returns
/// the address that the listener has seen.
pub(super) fn connect(
    from: Place<'_>,
    listener: Place<'_>,
    at: SocketAddr,
    to: Option<SocketAddr>,
) -> io::Result<IpAddr> {
    connect_within(from, listener, at, to, LIMIT)
}

/// The same, with a limit.
pub(super) fn connect_within(
    from: Place<'_>,
    listener: Place<'_>,
    at: SocketAddr,
    to: Option<SocketAddr>,
    limit: Duration,
) -> io::Result<IpAddr> {
    let (_, _, seen) = connected(from, listener, at, to, limit)?;
    Ok(seen.ip())
}

/// Both ends of a connection, and the address that the listener has seen.
fn connected(
    from: Place<'_>,
    listener: Place<'_>,
    at: SocketAddr,
    to: Option<SocketAddr>,
    limit: Duration,
) -> io::Result<(TcpStream, TcpStream, SocketAddr)> {
    let (listener, nonce) = (listener.open(|| TcpListener::bind(at))?, nonce()?);
    let to = to.unwrap_or(listener.local_addr()?);
    let mut near = from.open(|| TcpStream::connect_timeout(&to, limit))?;
    near.set_write_timeout(Some(limit))?;
    near.write_all(&nonce)?;
    let (far, seen) = accept(&listener, nonce)?;
    Ok((near, far, seen))
}

/// Whether a route leads to an address. Sends nothing.
pub(super) fn has_route(from: Place<'_>, to: IpAddr) -> bool {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    from.open(|| UdpSocket::bind((any, 0))?.connect((to, 9))).is_ok()
}

/// The connection that brings the nonce.
fn accept(listener: &TcpListener, nonce: Nonce) -> io::Result<(TcpStream, SocketAddr)> {
    let (end, mut waiting) = (Instant::now() + LIMIT, Vec::new());
    listener.set_nonblocking(true)?;
    while Instant::now() < end {
        match listener.accept() {
            Ok((stream, seen)) => {
                stream.set_nonblocking(true)?;
                waiting.push((stream, seen));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
        // Many silent connections must not keep the test from its own.
        waiting.drain(..waiting.len().saturating_sub(STRANGERS));
        let mut got = Nonce::default();
        let has_nonce = |(stream, _): &(TcpStream, _)| stream.peek(&mut got).is_ok() && got == nonce;
        if let Some(at) = waiting.iter().position(has_nonce) {
            let (mut stream, seen) = waiting.swap_remove(at);
            stream.set_nonblocking(false)?;
            stream.read_exact(&mut got)?;
            return Ok((stream, seen));
        }
    }
    // Another program has answered.
    Err(io::Error::other("the connection did not come to the pod"))
}

/// Two sockets that send datagrams to each other.
pub(super) struct Pair {
    near: UdpSocket,
    far: UdpSocket,
}

impl Pair {
    pub(super) fn open(
        (near, near_ip): (Place<'_>, IpAddr),
        (far, far_ip): (Place<'_>, IpAddr),
    ) -> io::Result<Pair> {
        let far = far.open(|| UdpSocket::bind((far_ip, 0)))?;
        let to = far.local_addr()?;
        let near = near.open(|| {
            let near = UdpSocket::bind((near_ip, 0))?;
            near.connect(to).map(|()| near)
        })?;
        Ok(Pair { near, far })
    }

    /// Sends a datagram of this size there and back. The kernel sets "don't fragment" unless a datagram is larger than the link's MTU.
    pub(super) fn echo(&self, size: usize, limit: Duration) -> io::Result<()> {
        let (nonce, end) = (nonce()?, Instant::now() + limit);
        let mut datagram = vec![7; size.max(nonce.len())];
        datagram[..nonce.len()].copy_from_slice(&nonce);
        // Only once: the kernel learns the MTU of the way by the first one, and sends the next one in parts.
        self.near.send(&datagram)?;
        // The address may be another one than that of the near socket: the node masquerades.
        let from = receive(&self.far, nonce, datagram.len(), end)?;
        self.far.send_to(&datagram, from)?;
        receive(&self.near, nonce, datagram.len(), end).map(drop)
    }
}

/// Waits for the datagram that begins with the nonce. Returns whose it is.
fn receive(socket: &UdpSocket, nonce: Nonce, size: usize, end: Instant) -> io::Result<SocketAddr> {
    let mut got = vec![0; size + 1];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let (len, from) = socket.recv_from(&mut got)?;
        if got[..len].starts_with(&nonce) {
            return if len == size { Ok(from) } else { Err(io::Error::other("it came in parts")) };
        }
    }
}

/// How long this number of bytes takes from one place to another.
pub(super) fn transfer(from: Place<'_>, to: Place<'_>, at: SocketAddr, size: usize) -> io::Result<Duration> {
    let (mut sender, mut receiver, _) = connected(from, to, at, None, LIMIT)?;
    receiver.set_read_timeout(Some(LIMIT))?;
    let began = Instant::now();
    thread::scope(|scope| {
        let send = thread::Builder::new().spawn_scoped(scope, move || sender.write_all(&vec![7; size]))?;
        let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
        while count < size {
            match receiver.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                len => count += len,
            }
        }
        send.join().unwrap_or_else(|_| Err(io::Error::other("the sender has panicked")))?;
        Ok(began.elapsed())
    })
}

/// Asks a resolver for `localhost`, without recursion. Any answer counts that has the question's number.
pub(super) fn resolve(from: Place<'_>, resolver: IpAddr) -> io::Result<()> {
    const QUESTION: &[u8] = b"\0\0\0\x01\0\0\0\0\0\0\x09localhost\0\0\x01\0\x01";
    let any: IpAddr = if resolver.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = from.open(|| UdpSocket::bind((any, 0)))?;
    socket.connect((resolver, 53))?;
    let number = &nonce()?[..2];
    socket.send(&[number, QUESTION].concat())?;
    let (end, mut answer, mut is_foreign) = (Instant::now() + LIMIT, [0; 512], false);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let received = if left.is_zero() {
            Err(ErrorKind::TimedOut.into())
        } else {
            socket.set_read_timeout(Some(left))?;
            socket.recv(&mut answer)
        };
        match received {
            Ok(len) if answer[..len].starts_with(number) => return Ok(()),
            Ok(_) => is_foreign = true,
            Err(_) if is_foreign => return Err(io::Error::other("the answer is none of DNS")),
            Err(error) => return Err(error),
        }
    }
}

/// What an error means for a packet.
pub(super) fn told(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("no answer within {} s", LIMIT.as_secs()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn datagrams_of_others_are_passed_over() {
        let pair = Pair::open((Place::Node, HOST), (Place::Node, HOST)).unwrap();
        let (to, over) = (pair.far.local_addr().unwrap(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let stranger = UdpSocket::bind((HOST, 0)).unwrap();
                while !over.load(Ordering::Relaxed) {
                    stranger.send_to(&[7; 64], to).unwrap();
                    thread::sleep(Duration::from_micros(100));
                }
            });
            let outcome = (0..20).try_for_each(|_| pair.echo(64, Duration::from_secs(10)));
            over.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
        assert!(pair.echo(8, Duration::ZERO).is_err());
    }

    #[test]
    fn connections_of_others_are_passed_over() {
        let listener = TcpListener::bind((HOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let connect = |bytes: &[u8]| {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        };
        let mut strangers: Vec<TcpStream> = [&b""[..], b"stranger", b"s"].map(connect).into();
        strangers.extend((0..STRANGERS + 8).map(|_| connect(b"")));
        let own = connect(b"the nonce");
        let (mut far, seen) = accept(&listener, *b"the nonc").unwrap();
        let mut rest = [0];
        far.read_exact(&mut rest).unwrap();
        assert_eq!((rest[0], seen), (b'e', own.local_addr().unwrap()));
    }
}

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
    let listener = listener.open(|| TcpListener::bind(at))?;
    listener.set_nonblocking(true)?;
    let to = to.unwrap_or(listener.local_addr()?);
    let _stream = from.open(|| TcpStream::connect_timeout(&to, limit))?;
    Ok(accept(&listener)?.1.ip())
}

/// Whether a route leads to an address. Sends nothing.
pub(super) fn has_route(from: Place<'_>, to: IpAddr) -> bool {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    from.open(|| UdpSocket::bind((any, 0))?.connect((to, 9))).is_ok()
}

fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let end = Instant::now() + LIMIT;
    loop {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(PAUSE)
            }
            // Another program has answered.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(io::Error::other("the connection did not come to the pod"));
            }
            outcome => return outcome,
        }
    }
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
        let (sent, mut got) = (vec![7; size], vec![0; size + 1]);
        self.near.set_read_timeout(Some(limit))?;
        self.far.set_read_timeout(Some(limit))?;
        // What an earlier call has waited for in vain.
        for socket in [&self.near, &self.far] {
            socket.set_nonblocking(true)?;
            while socket.recv(&mut got).is_ok() {}
            socket.set_nonblocking(false)?;
        }
        self.near.send(&sent)?;
        let (len, from) = self.far.recv_from(&mut got)?;
        self.far.send_to(&sent[..len.min(size)], from)?;
        let back = self.near.recv(&mut got)?;
        if (len, back) == (size, size) { Ok(()) } else { Err(io::Error::other("it came in parts")) }
    }
}

/// How long this number of bytes takes from one place to another.
pub(super) fn transfer(from: Place<'_>, to: Place<'_>, at: SocketAddr, size: usize) -> io::Result<Duration> {
    let listener = to.open(|| TcpListener::bind(at))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let mut sender = from.open(|| TcpStream::connect_timeout(&address, LIMIT))?;
    let (mut receiver, _) = accept(&listener)?;
    receiver.set_nonblocking(false)?;
    receiver.set_read_timeout(Some(LIMIT))?;
    sender.set_write_timeout(Some(LIMIT))?;
    let began = Instant::now();
    thread::scope(|scope| {
        let send = thread::Builder::new().spawn_scoped(scope, move || sender.write_all(&vec![7; size]))?;
        let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
        while count < size {
            match receiver.read(&mut buffer)? {
                0 => break,
                len => count += len,
            }
        }
        send.join().unwrap_or_else(|_| Err(io::Error::other("the sender has panicked")))?;
        Ok(began.elapsed())
    })
}

/// Asks a resolver for `localhost`, without recursion. Any answer counts.
pub(super) fn resolve(from: Place<'_>, resolver: IpAddr) -> io::Result<()> {
    const QUESTION: &[u8] = b"\x46\x54\0\0\0\x01\0\0\0\0\0\0\x09localhost\0\0\x01\0\x01";
    let any: IpAddr = if resolver.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = from.open(|| UdpSocket::bind((any, 0)))?;
    socket.connect((resolver, 53))?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.send(QUESTION)?;
    let mut answer = [0; 512];
    let len = socket.recv(&mut answer)?;
    match answer[..len].starts_with(&QUESTION[..2]) {
        true => Ok(()),
        false => Err(io::Error::other("the answer is none of DNS")),
    }
}

/// What an error means for a packet.
pub(super) fn told(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("no answer within {} s", LIMIT.as_secs()),
        _ => error.to_string(),
    }
}

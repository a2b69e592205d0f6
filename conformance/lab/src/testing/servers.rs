//! TCP and UDP servers of a test, and their clients.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::{Place, TIMEOUT, repeated};

/// How long a client waits if no answer is expected. If an answer is expected, it waits [`TIMEOUT`].
pub const NO_ANSWER_WAIT: Duration = Duration::from_millis(400);

/// Starts servers on a port of that place until the test ends. They answer with a name and the client's
/// address. A socket stays in the namespace in which it was created, so only the creation runs there.
pub fn serve(place: &impl Place, name: &str, port: u16) {
    serve_at(place, name, (Ipv6Addr::UNSPECIFIED, port).into());
}

/// [`serve`] at one address.
pub fn serve_at(place: &impl Place, name: &str, address: SocketAddr) {
    let listener = place.run(|| TcpListener::bind(address)).unwrap().unwrap();
    let greeting = name.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let peer = stream.peer_addr().map_or(String::new(), |peer| peer.ip().to_canonical().to_string());
            let _ = (&stream).write_all(format!("{greeting} {peer}").as_bytes());
        }
    });
    let socket = place.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    let greeting = name.to_owned();
    thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(format!("{greeting} {}", peer.ip().to_canonical()).as_bytes(), peer);
        }
    });
}

/// Connects to a TCP server and returns its answer: the server's name and the client's address that it saw.
pub fn tcp(place: &impl Place, to: SocketAddr, timeout: Duration) -> io::Result<String> {
    place
        .run(|| {
            let mut stream = TcpStream::connect_timeout(&to, timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
        .unwrap()
}

/// Sends to a UDP server and returns its answer. Tries twice: the first packet may be lost during neighbour
/// resolution.
pub fn udp(place: &impl Place, to: SocketAddr, timeout: Duration) -> io::Result<String> {
    let socket = udp_socket(place, to);
    udp_ask(&socket, timeout)
}

/// A UDP socket of that place, connected to a server.
pub fn udp_socket(place: &impl Place, to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv6() { [0; 16].into() } else { [0; 4].into() };
    place
        .run(|| {
            let socket = UdpSocket::bind((any, 0)).unwrap();
            socket.connect(to).unwrap();
            socket
        })
        .unwrap()
}

/// Sends to the UDP server of a connected socket and returns its answer; see [`udp`].
pub fn udp_ask(socket: &UdpSocket, timeout: Duration) -> io::Result<String> {
    socket.set_read_timeout(Some(timeout / 2))?;
    let mut buffer = [0; 64];
    let mut outcome = Err(io::ErrorKind::TimedOut.into());
    for attempt in 1..=2 {
        outcome = socket.send(b"?").and_then(|_| socket.recv(&mut buffer));
        if outcome.is_ok() {
            if attempt > 1 {
                repeated("a UDP request without an answer");
            }
            break;
        }
    }
    outcome.map(|len| String::from_utf8_lossy(&buffer[..len]).into_owned())
}

/// Asks a server with this protocol and returns its answer.
pub fn ask(place: &impl Place, proto: &str, to: SocketAddr) -> Result<String, String> {
    let answer = if proto == "tcp" { tcp(place, to, TIMEOUT) } else { udp(place, to, TIMEOUT) };
    answer.map_err(|error| format!("{proto} to {to}: {error}"))
}

/// Whether a request gets no answer: it is refused or times out.
pub fn silent(place: &impl Place, proto: &str, to: SocketAddr) -> bool {
    let answer = if proto == "tcp" { tcp(place, to, NO_ANSWER_WAIT) } else { udp(place, to, NO_ANSWER_WAIT) };
    answer.is_err()
}

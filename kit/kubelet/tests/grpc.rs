//! Servers that are not what the client expects. Each must end in one error, and none may hang. How the client understands a real
//! server is tested in `pod_resources.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use ferrule_kubelet::grpc::{Error, call};

/// Long enough that no test waits for it by accident.
const NEVER: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_millis(100);
/// SETTINGS, and `:status: 200`.
const BEGIN: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01\x88";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\x0012345678";

/// Calls a server that does this with its first connection.
fn call_of(limit: Duration, serve: impl FnOnce(UnixStream) + Send + 'static) -> Result<Vec<u8>, Error> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || serve(listener.accept().unwrap().0));
    call(&socket, "/x.Y/Z", b"", limit)
}

fn call_with(limit: Duration, answer: &'static [u8]) -> String {
    let error = call_of(limit, move |mut stream| {
        stream.write_all(answer).unwrap();
        // Until the client has ended.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    error.unwrap_err().to_string()
}

#[test]
fn what_no_grpc_server_sends() {
    for (answer, text) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "the server sent a frame that is too long"),
        (b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01", "the server sent the end of the connection"),
        (b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x07", "the server reset the stream with error 7 of HTTP/2"),
        (b"\0\0\x01\x01\x05\0\0\0\x01\x8e", "the server sent no status of gRPC"),
        (
            b"\0\0\x01\x01\x04\0\0\0\x01\x88\0\0\x05\0\0\0\0\0\x01\0\x01\0\0\x01",
            "the server sent an answer of more than 16777216 bytes",
        ),
    ] {
        assert_eq!(call_with(NEVER, answer), text);
    }
}

#[test]
fn a_server_that_goes_away() {
    for begin in [b"", BEGIN] {
        let error = call_of(NEVER, move |mut stream| stream.write_all(begin).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "the server closed the connection");
    }
    // Whether it closes before or after the client's request.
    let refused = b"\0\0\x01\x01\x05\0\0\0\x01\x8e";
    let error = call_of(NEVER, move |mut stream| stream.write_all(refused).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the server sent no status of gRPC");
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let refused = || call(&socket, "/x.Y/Z", b"", NEVER).unwrap_err().to_string();
    assert!(refused().contains("No such file"));
    drop(UnixListener::bind(&socket).unwrap());
    assert!(refused().contains("refused"));
}

/// The limit holds for the whole call, also for a server that keeps sending.
#[test]
fn a_server_that_hangs() {
    assert_eq!(call_with(SOON, b""), "the server has not answered in time");
    assert_eq!(call_with(SOON, BEGIN), "the server has not answered in time");
    let error = call_of(SOON, |mut stream| while stream.write_all(PING).is_ok() {});
    assert_eq!(error.unwrap_err().to_string(), "the server has not answered in time");
}

/// connect(2) blocks if the queue of the listener is full.
#[test]
fn a_server_that_does_not_accept() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let address = nix::sys::socket::UnixAddr::new(&socket).unwrap();
    let (family, kind) = (nix::sys::socket::AddressFamily::Unix, nix::sys::socket::SockType::Stream);
    let listener = nix::sys::socket::socket(family, kind, nix::sys::socket::SockFlag::empty(), None).unwrap();
    nix::sys::socket::bind(std::os::fd::AsRawFd::as_raw_fd(&listener), &address).unwrap();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    // The kernel takes one more than the backlog.
    let _first = UnixStream::connect(&socket).unwrap();
    let started = Instant::now();
    let error = call(&socket, "/x.Y/Z", b"", SOON).unwrap_err();
    assert!(matches!(&error, Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut), "{error}");
    assert!(started.elapsed() >= SOON);
}

//! Connects to a Unix socket within a time limit.

use std::io::{self, ErrorKind};
pub use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Connects in another thread: connect(2) blocks without limit if the peer does not accept connections. After the limit the
/// thread runs until the process exits.
///
/// # Errors
/// The error of connect(2), or [`ErrorKind::TimedOut`].
pub fn connect(socket: SocketAddr, limit: Duration) -> io::Result<UnixStream> {
    // Spares the thread.
    if socket.as_pathname().is_some_and(|path| !path.exists()) {
        return Err(io::Error::from_raw_os_error(nix::errno::Errno::ENOENT as i32));
    }
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let _ = sender.send(UnixStream::connect_addr(&socket));
    })?;
    receiver.recv_timeout(limit).map_err(|_| io::Error::from(ErrorKind::TimedOut))?
}

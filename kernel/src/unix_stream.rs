//! Connects to a Unix socket within a time limit.

use std::io::{self, ErrorKind};
pub use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use crate::limited;

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
    let connected = limited::within(limit, move || UnixStream::connect_addr(&socket))?;
    connected.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))
}

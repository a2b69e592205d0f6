//! A connection to a Unix socket that waits for nothing longer than its limit.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write};
pub use std::os::unix::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::limited;

/// A connection. Every read and write ends at the deadline with [`ErrorKind::TimedOut`]. If the server has
/// closed the connection, they end with [`ErrorKind::UnexpectedEof`].
#[derive(Debug)]
pub struct TimedStream {
    stream: UnixStream,
    deadline: Instant,
}

impl TimedStream {
    /// Connects in another thread: connect(2) blocks without limit if the peer does not accept connections. After the limit the
    /// thread runs until the process exits. The limit holds for the connection and what follows.
    ///
    /// # Errors
    /// The error of connect(2), or [`ErrorKind::TimedOut`].
    pub fn connect(socket: SocketAddr, limit: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + limit;
        // Spares the thread.
        if socket.as_pathname().is_some_and(|path| !path.exists()) {
            return Err(io::Error::from_raw_os_error(nix::errno::Errno::ENOENT as i32));
        }
        let connected = limited::within(limit, move || UnixStream::connect_addr(&socket))?;
        let stream = connected.unwrap_or_else(|| Err(timed_out()))?;
        Ok(TimedStream { stream, deadline })
    }

    /// Sets the limit of what follows.
    pub fn set_limit(&mut self, limit: Duration) {
        self.deadline = Instant::now() + limit;
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(timed_out()) } else { Ok(Some(left)) }
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        let read = self.stream.read(buffer).map_err(explained)?;
        if read == 0 { Err(explained(ErrorKind::BrokenPipe.into())) } else { Ok(read) }
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(explained)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a text as one line, and reads one line of at most `longest` bytes. The text has no line break.
///
/// # Errors
/// The server does not answer within the limit.
pub fn exchange(path: &Path, mut text: Vec<u8>, longest: u64, limit: Duration) -> io::Result<Vec<u8>> {
    let mut stream = TimedStream::connect(SocketAddr::from_pathname(path)?, limit)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(longest)).read_until(b'\n', &mut answer)?;
    Ok(answer)
}

fn timed_out() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the server has not answered in time")
}

/// The kernel's errors of a time limit, and of a server that closes before it has read everything, are not clear by themselves.
fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => timed_out(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")
        }
        _ => error,
    }
}

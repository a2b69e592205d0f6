//! Asks the daemon. Every wait has a limit.

use std::fs;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use cni_common::spec::{CniError, Code, Json};
use ferrule_kernel::unix_stream::{SocketAddr, TimedStream};

use crate::wire::{Answer, LONGEST, Lease, Operation, PROTOCOL, REFERENCE_DAEMON, Request, lease_file};

/// How long the daemon may look for a lease. The kubelet gives up after two minutes.
pub const ACQUIRE: Duration = Duration::from_secs(90);
/// How long everything else may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Why the daemon did not answer.
#[derive(Debug)]
pub enum Error {
    /// The socket does not exist, or no process listens.
    NoDaemon(CniError),
    /// The connection failed, the peer is not our daemon, or the daemon refused.
    Failed(CniError),
}

impl From<Error> for CniError {
    fn from(error: Error) -> CniError {
        match error {
            Error::NoDaemon(error) | Error::Failed(error) => error,
        }
    }
}

/// Sends the request and waits for the answer.
pub fn ask(socket: &Path, request: &Request) -> Result<Option<Lease>, Error> {
    let stream = dial(socket)?;
    let call = match request.operation {
        Operation::Acquire | Operation::Show => "DHCP.Allocate",
        Operation::Release | Operation::Collect => "DHCP.Release",
        Operation::Ping => "DHCP.Ping",
    };
    let broken = |why: &dyn std::fmt::Display| {
        Error::Failed(CniError::new(Code::Io, format!("error calling {call}: {}: {why}", socket.display())))
    };
    let limit = LIMIT + Duration::from_millis(request.wait);
    let line = exchange(stream, request, limit).map_err(|error| match error.kind() {
        ErrorKind::TimedOut => {
            broken(&format_args!("the daemon has not answered within {} seconds", limit.as_secs()))
        }
        _ => broken(&text_of(&error)),
    })?;
    if line.starts_with(REFERENCE_DAEMON) {
        return Err(broken(&"this is the daemon of the reference plugins; stop it and start ferrule-dhcp"));
    }
    let answer: Answer = Json::parse(&line)
        .and_then(|json| json.decode())
        .map_err(|error| broken(&format_args!("the peer is not ferrule-dhcp: {error}")))?;
    if let Some(failure) = answer.error {
        let msg = format!("error calling {call}: {}", failure.msg);
        return Err(Error::Failed(CniError::new(Code::from(failure.code), msg)));
    }
    if answer.ferrule_dhcp != PROTOCOL {
        let theirs = answer.ferrule_dhcp;
        return Err(broken(&format_args!(
            "ferrule-dhcp speaks version {theirs} of the protocol, this plugin version {PROTOCOL}; install both of one release"
        )));
    }
    Ok(answer.lease)
}

fn dial(socket: &Path) -> Result<TimedStream, Error> {
    let connected = SocketAddr::from_pathname(socket).and_then(|path| TimedStream::connect(path, LIMIT));
    connected.map_err(|error| {
        let msg = format!(
            "error dialing DHCP daemon: dial unix {}: connect: {}",
            socket.display(),
            text_of(&error)
        );
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                Error::NoDaemon(CniError::internal(msg).with_remedy(
                    "start the daemon ferrule-dhcp, for example: systemctl enable --now cni-dhcp.socket",
                ))
            }
            _ => Error::Failed(CniError::new(Code::Io, msg)),
        }
    })
}

fn exchange(mut stream: TimedStream, request: &Request, limit: Duration) -> io::Result<Vec<u8>> {
    stream.set_limit(limit);
    // The reference's daemon may close the connection before it has read everything; its answer tells more.
    let _ = stream.write_all(&request.to_line());
    let mut line = Vec::new();
    match BufReader::new(stream.take(LONGEST + 1)).read_until(b'\n', &mut line) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof && !line.is_empty() => Ok(line),
        read => read.map(|_| line),
    }
}

/// The kernel's text as the reference prints it.
fn text_of(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}

/// DEL without a daemon: removes the lease's file, so that a daemon that starts later does not renew a lease without a container. The
/// lease expires at the server.
///
/// # Errors
/// The file exists and cannot be removed.
pub fn forget(socket: &Path, request: &Request) -> Result<(), CniError> {
    let file = lease_file(socket, &request.key);
    match fs::remove_file(&file) {
        Ok(()) => {
            eprintln!(
                "dhcp: no daemon: removed {}; the lease is not released and expires at the server",
                file.display()
            );
            Ok(())
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(CniError::new(Code::Io, format!("remove {}: {error}", file.display()))),
    }
}

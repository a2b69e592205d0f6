//! Asks the daemon. Every wait has a limit.

use std::fs;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use cni_common::remark;
use cni_common::spec::{CniError, Code, Json};
use ferrule_kernel::unix_stream::{SocketAddr, TimedStream};

use crate::wire::{
    Answer, Family, LONGEST, Lease, Operation, PROTOCOL, REFERENCE_DAEMON, Request, lease_file,
};

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

/// Sends the request and waits for the answer: the leases of the request's families.
pub fn ask(socket: &Path, request: &Request) -> Result<Vec<Lease>, Error> {
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
    let mut answer: Answer = Json::parse(&line)
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
    let lease = |family: &Family| {
        answer.lease(*family).take().ok_or_else(|| {
            broken(&format_args!(
                "ferrule-dhcp has answered without a lease of {family:?}; restart it with the program of this release"
            ))
        })
    };
    request.families.iter().map(lease).collect()
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

/// DEL without a daemon: removes the files of the leases, so that a daemon that starts later does not renew a lease without a
/// container. The leases expire at the server.
///
/// # Errors
/// A file exists and cannot be removed.
pub fn forget(socket: &Path, request: &Request) -> Result<(), CniError> {
    Family::ALL.into_iter().try_for_each(|family| remove(&lease_file(socket, &request.key, family)))
}

fn remove(file: &Path) -> Result<(), CniError> {
    match fs::remove_file(file) {
        Ok(()) => {
            remark!(
                "dhcp: no daemon: removed {}; the lease is not released and expires at the server",
                file.display()
            );
            Ok(())
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(CniError::new(Code::Io, format!("remove {}: {error}", file.display()))),
    }
}

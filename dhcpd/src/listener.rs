//! The socket: from systemd, or bound by the daemon itself.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use crate::log;

/// The listening socket. Dropping it removes the socket's file if the daemon has made it.
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    made: Option<PathBuf>,
    /// Keeps other daemons away from the same socket and leases.
    _lock: File,
}

impl Listener {
    /// Takes the socket that systemd passes, or binds one.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let lock = lock(path)?;
        let mut passed = ListenFd::from_env();
        let (socket, made) = match passed.len() {
            0 => (bind(path)?, Some(path.to_owned())),
            1 => {
                let socket = passed.take_unix_listener(0)?;
                (socket.ok_or_else(|| io::Error::other("LISTEN_FDS=1 but no FD found"))?, None)
            }
            count => {
                let text = format!("Too many ({count}) FDs passed through socket activation");
                return Err(io::Error::other(text));
            }
        };
        socket.set_nonblocking(true)?;
        Ok(Listener { socket, made, _lock: lock })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let name = path.with_extension("lock");
    let lock = File::options().append(true).create(true).open(&name)?;
    lock.try_lock()
        .map_err(|error| io::Error::other(format!("another daemon runs: {}: {error}", name.display())))?;
    Ok(lock)
}

/// Binds the socket. A killed daemon leaves its file, which refuses connections.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            match UnixStream::connect(path) {
                Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                _ => return Err(io::Error::other(format!("listen unix {}: {error}", path.display()))),
            }
            UnixListener::bind(path)?
        }
        outcome => outcome?,
    };
    fs::set_permissions(path, Permissions::from_mode(0o660))?;
    Ok(socket)
}

/// A file with the process ID. Dropping it removes the file.
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    pub(crate) fn write(path: &Path) -> io::Result<Self> {
        fs::write(path, std::process::id().to_string())?;
        fs::set_permissions(path, Permissions::from_mode(0o644))?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Tells systemd that the daemon is ready (sd_notify(3)).
pub(crate) fn notify_ready() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::SocketAddr;

    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = path.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
    if let Err(error) = sent {
        log(&format!("cannot notify systemd: {error}"));
    }
}

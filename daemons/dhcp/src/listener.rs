//! The socket: from systemd, or bound by the daemon itself.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use ferrule_kernel::file;
use listenfd::ListenFd;

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
    let taken = || io::Error::other(format!("another daemon runs: {} is locked", name.display()));
    file::try_lock(&name, 0o600)?.ok_or_else(taken)
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

/// Writes a file with the process ID.
pub(crate) fn write_pid(path: &Path) -> io::Result<()> {
    file::replace(path, &file::pending_beside(path), 0o644, std::process::id().to_string().as_bytes())
}

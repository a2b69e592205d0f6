//! One socket and the services behind it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::server::Router;

/// How long open calls may take at the end.
const END: Duration = Duration::from_secs(1);

/// What makes a file the same one: a new file may get the inode of the old one.
pub(crate) type Identity = (u64, u64, i64, i64);

/// The identity of a file; `None` if it does not exist.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let data = fs::symlink_metadata(path).ok()?;
    Some((data.dev(), data.ino(), data.ctime(), data.ctime_nsec()))
}

/// A running server. Removes its socket at the end.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    bound: Option<Identity>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds the socket anew and serves there. The services' streams end when the value is true.
    pub(crate) fn start(
        path: &Path,
        services: impl FnOnce(watch::Receiver<bool>) -> Router,
    ) -> io::Result<Server> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let (stop, stopped) = watch::channel(false);
        let server = services(stopped.clone());
        let connections = stream::unfold(listener, |listener| async move {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let mut end = stopped;
        let task = tokio::spawn(async move {
            let end = async move { drop(end.wait_for(|stop| *stop).await) };
            if let Err(error) = server.serve_with_incoming_shutdown(connections, end).await {
                log!("cannot serve: {error}");
            }
        });
        Ok(Server { path: path.to_owned(), bound: identity(path), stop, task })
    }

    /// Whether the socket is still there.
    pub(crate) fn is_there(&self) -> bool {
        identity(&self.path) == self.bound
    }

    /// Ends the streams, then the server.
    pub(crate) async fn stop(mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
        self.stop.send_replace(true);
        if timeout(END, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

//! One socket and the services behind it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrule_nic_proto::v1beta1::device_plugin_server::DevicePluginServer;
use futures_util::stream;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Server as Grpc;

use super::Served;
use super::service::{Service, Streams};

/// How long open calls may take at the end.
const END: Duration = Duration::from_secs(1);

/// What makes a file the same one: a new file may get the inode of the old one.
pub(super) type Identity = (u64, u64, i64, i64);

/// The identity of a file; `None` if it does not exist.
pub(super) fn identity(path: &Path) -> Option<Identity> {
    let data = fs::symlink_metadata(path).ok()?;
    Some((data.dev(), data.ino(), data.ctime(), data.ctime_nsec()))
}

/// A running server. Removes its socket at the end.
#[derive(Debug)]
pub(super) struct Server {
    path: PathBuf,
    bound: Option<Identity>,
    stop: watch::Sender<bool>,
    pub(super) streams: watch::Sender<Streams>,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds the socket of the resource anew and serves there.
    pub(super) fn start(path: &Path, served: Arc<Served>) -> io::Result<Server> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let (stop, stopped) = watch::channel(false);
        let streams = watch::Sender::new(None);
        let service = Service { served, streams: streams.clone(), stop: stopped.clone() };
        let server = Grpc::builder().add_service(DevicePluginServer::new(service));
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
        Ok(Server { path: path.to_owned(), bound: identity(path), stop, streams, task })
    }

    /// Whether the socket is still there.
    pub(super) fn is_there(&self) -> bool {
        identity(&self.path) == self.bound
    }

    /// Ends the streams, then the server.
    pub(super) async fn stop(mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
        self.stop.send_replace(true);
        if timeout(END, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

//! Unix sockets of the kubelet's servers.

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use futures_util::{Stream, stream};
use tokio::net::{UnixListener as AsyncListener, UnixStream};

/// Listens at the path. Replaces a file there.
pub(crate) fn bind(path: &Path) -> UnixListener {
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// The connections, for a server. Needs a runtime. Closes the first ones after their first bytes.
pub(crate) fn accept(listener: UnixListener, hang_ups: u32) -> impl Stream<Item = io::Result<UnixStream>> {
    let listener = AsyncListener::from_std(listener).unwrap();
    stream::unfold((listener, hang_ups), |(listener, hang_ups)| async move {
        for _ in 0..hang_ups {
            if let Ok((stream, _)) = listener.accept().await {
                let _ = stream.readable().await;
            }
        }
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, (listener, 0)))
    })
}

//! Answers the plugin: one request on each connection.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ferrule_blocks::wire::{Answer, LONGEST, PROTOCOL, Request, line};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::Reply;

/// The most connections at once.
const CONNECTIONS: usize = 512;
/// How long a plugin may take to send its request, or to take the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause after an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens on the socket, which only this user can reach. Takes the place of a socket that a former daemon has left.
///
/// # Errors
/// The folder or the socket cannot be made.
pub(super) fn listen(path: &Path) -> Result<UnixListener> {
    let name = || format!("socket {}", path.display());
    let folder = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o755).create(folder).with_context(name)?;
    // Nobody can connect before the mode is set and the name is the right one.
    let pending = path.with_extension("new");
    let _ = fs::remove_file(&pending);
    let listener = UnixListener::bind(&pending).with_context(name)?;
    fs::set_permissions(&pending, Permissions::from_mode(0o600)).with_context(name)?;
    fs::rename(&pending, path).with_context(name)?;
    Ok(listener)
}

/// Answers until it is dropped.
pub(super) async fn run(listener: UnixListener, requests: mpsc::Sender<(Request, Reply)>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let requests = requests.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(stream, &requests).await {
                log!("a request for a block: {error:#}");
            }
            drop(place);
        });
    }
}

async fn serve(stream: UnixStream, requests: &mpsc::Sender<(Request, Reply)>) -> Result<()> {
    let caller = stream.peer_cred()?.uid();
    ensure!(caller == 0 || caller == rustix::process::geteuid().as_raw(), "user {caller} may not ask");
    let (reader, mut writer) = stream.into_split();
    let mut text = Vec::new();
    let mut reader = BufReader::new(reader.take(LONGEST));
    timeout(LIMIT, reader.read_until(b'\n', &mut text)).await.context("no request in time")??;
    let request: Request = serde_json::from_slice(&text)?;
    ensure!(
        request.ferrule_blocks == PROTOCOL,
        "the plugin speaks version {} of the protocol, not {PROTOCOL}",
        request.ferrule_blocks
    );
    let (sender, answer) = oneshot::channel();
    requests.send((request, sender)).await?;
    let answer = Answer::new(answer.await?);
    timeout(LIMIT, writer.write_all(&line(&answer))).await.context("the answer was not read in time")??;
    Ok(())
}

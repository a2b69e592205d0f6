//! A Unix socket on which only this user is answered: each connection asks one question, a line of JSON, and gets one such line.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::log;

/// The most connections at once.
const CONNECTIONS: usize = 512;
/// How long a client may take to send its question, or to take the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause after an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens on the socket, which only this user can reach. Takes the place of a socket that a former daemon has left.
///
/// # Errors
/// The folder or the socket cannot be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let make = || {
        let folder = path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        // A client can connect only when the mode is set and the name is the right one.
        let pending = path.with_extension("new");
        let _ = fs::remove_file(&pending);
        let listener = UnixListener::bind(&pending)?;
        fs::set_permissions(&pending, Permissions::from_mode(0o600))?;
        fs::rename(&pending, path)?;
        Ok(listener)
    };
    make().map_err(|error: io::Error| {
        io::Error::new(error.kind(), format!("socket {}: {error}", path.display()))
    })
}

/// Answers until it is dropped. `longest`: that of a question, in bytes. `what`: the question, for the log.
pub async fn answer<Q, A, F>(
    listener: UnixListener,
    longest: u64,
    what: &'static str,
    reply: impl Fn(Q) -> F + Clone + Send + 'static,
) where
    Q: DeserializeOwned + Send,
    A: Serialize + Send,
    F: Future<Output = Result<A, String>> + Send,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let reply = reply.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(stream, longest, reply).await {
                log!("{what}: {error}");
            }
            drop(place);
        });
    }
}

async fn serve<Q: DeserializeOwned, A: Serialize, F: Future<Output = Result<A, String>>>(
    stream: UnixStream,
    longest: u64,
    reply: impl Fn(Q) -> F,
) -> Result<(), String> {
    let said = |error: io::Error| error.to_string();
    let caller = stream.peer_cred().map_err(said)?.uid();
    if caller != 0 && caller != rustix::process::geteuid().as_raw() {
        return Err(format!("user {caller} may not ask"));
    }
    let (reader, mut writer) = stream.into_split();
    let mut text = Vec::new();
    let mut reader = BufReader::new(reader.take(longest));
    let read = timeout(LIMIT, reader.read_until(b'\n', &mut text)).await;
    read.map_err(|_| "no question in time".to_owned())?.map_err(said)?;
    let question = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let mut line = serde_json::to_vec(&reply(question).await?).map_err(|error| error.to_string())?;
    line.push(b'\n');
    let written = timeout(LIMIT, writer.write_all(&line)).await;
    written.map_err(|_| "the answer was not read in time".to_owned())?.map_err(said)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn one_line_asks_and_one_answers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/socket");
        drop(listen(&path).unwrap());
        let listener = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let server = tokio::spawn(answer(listener, 8, "a test", |number: u32| async move {
            if number == 7 { Err("seven".to_owned()) } else { Ok(number + 1) }
        }));
        // Too long, no JSON, another type, an error: the connection ends without an answer.
        for (question, expected) in [
            ("41\n", "42\n"),
            ("41", "42\n"),
            ("7\n", ""),
            ("12345678901\n", ""),
            ("{\n", ""),
            ("\"a\"\n", ""),
        ] {
            let mut client = UnixStream::connect(&path).await.unwrap();
            client.write_all(question.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let mut said = String::new();
            // The server may close before it has read all.
            let _ = client.read_to_string(&mut said).await;
            assert_eq!(said, expected, "{question:?}");
        }
        server.abort();
    }
}

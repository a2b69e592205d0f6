//! Reads a request from each connection and writes the answer.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use ferrule_daemon::log;
use ferrule_dhcp::wire::{Answer, Failure, LONGEST, PROTOCOL, REFERENCE_PLUGIN, Request};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::registry::Daemon;

/// How long a client may take to send its request or to read the answer.
const CLIENT_WAIT: Duration = Duration::from_secs(10);
/// The pause after an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The answer to the reference's plugin: it prints the status line.
const TO_REFERENCE: &[u8] =
    b"HTTP/1.0 501 this is ferrule-dhcp: install Ferrule's dhcp plugin, or start the reference's daemon\r\n\r\n";

/// Answers connections for ever.
pub(crate) async fn serve(daemon: Rc<Daemon>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let daemon = Rc::clone(&daemon);
                tokio::task::spawn_local(async move {
                    if let Err(error) = converse(&daemon, stream).await {
                        log!("a connection failed: {error}");
                    }
                });
            }
            Err(error) => {
                log!("cannot accept a connection: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(daemon: &Rc<Daemon>, mut stream: UnixStream) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut line = Vec::new();
    let mut reader = BufReader::new(reader.take(LONGEST));
    timeout(CLIENT_WAIT, reader.read_until(b'\n', &mut line)).await??;
    let mut answer = match serde_json::from_slice::<Request>(&line) {
        _ if line.is_empty() => return Ok(()),
        _ if line.starts_with(REFERENCE_PLUGIN) => TO_REFERENCE.to_vec(),
        Ok(request) => serde_json::to_vec(&daemon.answer(request).await)?,
        Err(error) => {
            let msg = format!("ferrule-dhcp does not understand the request: {error}");
            let error = Some(Failure { code: 6, msg });
            serde_json::to_vec(&Answer { ferrule_dhcp: PROTOCOL, error, ..Answer::default() })?
        }
    };
    answer.push(b'\n');
    timeout(CLIENT_WAIT, writer.write_all(&answer)).await?
}

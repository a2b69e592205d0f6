//! One list of the nodes and the watches after it, until something fails.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use kube::core::WatchEvent;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::Update;
use super::client::{Connection, Refused};
use super::outbox::Seen;
use crate::cluster::{Node, Peer, Peers};

/// The longest line of a watch in bytes. etcd keeps objects up to 1.5 MB.
const MAX_LINE: u64 = 8 << 20;
/// The least time between the starts of two watches, if the API server ends each at once.
const SHORTEST: Duration = Duration::from_secs(1);
/// The HTTP status for a watch from a version that the API server no longer knows.
const GONE: u16 = 410;

/// Lists the nodes and follows them. Returns if a new list is due, or if the receiver is gone. `own`: this node's name and annotations.
pub(super) async fn follow(
    connection: &Connection,
    own: (&str, &watch::Sender<Seen>),
    updates: &Sender<Update>,
    idle: Duration,
) -> Result<()> {
    let (peers, mut version) = list(connection, own).await?;
    if updates.send(Update::List(peers)).await.is_err() || updates.send(Update::State(Ok(()))).await.is_err()
    {
        return Ok(());
    }
    loop {
        let watch = match connection.watch(&version).await {
            Err(error) if error.downcast_ref().is_some_and(|refused: &Refused| refused.code == GONE) => {
                return Ok(());
            }
            watch => watch?,
        };
        let begin = Instant::now();
        match read(watch, &mut version, own, updates, idle).await? {
            End::Again => sleep_until(begin + SHORTEST).await,
            End::List => return Ok(()),
        }
    }
}

/// All nodes, and the version of the list.
async fn list(connection: &Connection, own: (&str, &watch::Sender<Seen>)) -> Result<(Peers, String)> {
    let (mut peers, mut token) = (Peers::new(), None);
    loop {
        let page = connection.list(token).await?;
        page.items.iter().for_each(|node| note(own, node));
        peers.extend(page.items.into_iter().filter_map(check));
        token = page.metadata.next.filter(|next| !next.is_empty());
        if token.is_none() {
            return Ok((peers, page.metadata.resource_version));
        }
    }
}

/// Notes the annotations of this node's object.
fn note((name, seen): (&str, &watch::Sender<Seen>), node: &Node) {
    if node.metadata.name == name {
        let annotations = Some(node.annotations());
        seen.send_if_modified(|seen| std::mem::replace(seen, annotations.clone()) != annotations);
    }
}

fn check(node: Node) -> Option<(String, Peer)> {
    let shown: String = node.metadata.name.escape_default().take(80).collect();
    let checked = node.check();
    if checked.is_none() {
        log!("ignores a Node with an invalid name: {shown}");
    }
    checked
}

/// The next step after a watch.
enum End {
    /// Another watch, from the last version on.
    Again,
    /// A new list.
    List,
}

async fn read(
    watch: impl AsyncBufRead,
    version: &mut String,
    own: (&str, &watch::Sender<Seen>),
    updates: &Sender<Update>,
    idle: Duration,
) -> Result<End> {
    let mut watch = std::pin::pin!(watch);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = watch.as_mut().take(MAX_LINE);
        let len = match timeout(idle, limited.read_until(b'\n', &mut line)).await {
            // The API server sends a bookmark each minute: this connection is dead, or the API server hangs.
            Err(_) => bail!("the watch has said nothing for {idle:?}"),
            Ok(len) => len.context("read the watch")?,
        };
        if !line.ends_with(b"\n") {
            match len {
                0 => return Ok(End::Again),
                _ => bail!("the watch ended in a line, after {len} bytes"),
            }
        }
        let update = match serde_json::from_slice::<WatchEvent<Node>>(&line).context("read the watch")? {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                version.clone_from(&node.metadata.resource_version);
                note(own, &node);
                check(node).map(|(name, peer)| Update::Changed(name, Box::new(peer)))
            }
            WatchEvent::Deleted(node) => {
                version.clone_from(&node.metadata.resource_version);
                Some(Update::Gone(node.metadata.name))
            }
            WatchEvent::Bookmark(bookmark) => {
                version.clone_from(&bookmark.metadata.resource_version);
                None
            }
            WatchEvent::Error(status) if status.code == GONE => return Ok(End::List),
            WatchEvent::Error(status) => bail!("the API server ends the watch: {}", status.message),
        };
        if let Some(update) = update
            && updates.send(update).await.is_err()
        {
            return Ok(End::List);
        }
    }
}

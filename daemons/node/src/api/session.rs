//! A list of the nodes and the watches after it. After a failure the next session goes on where this one has ended.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use kube::core::WatchEvent;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::{Age, Connection, Refused};
use super::outbox::Seen;
use super::{Update, spread};
use crate::cluster::{Node, Peer, Peers};

/// The longest line of a watch in bytes. etcd keeps objects up to 1.5 MB.
const MAX_LINE: u64 = 8 << 20;
/// The least time between the starts of two watches, if the API server ends each at once.
const SHORTEST: Duration = Duration::from_secs(1);
/// A watch that ends earlier, without a word, is a failure: a proxy may answer anything.
const USUAL: Duration = Duration::from_secs(60);
/// A watch works that has lasted so long, or has said anything.
const WORKS: Duration = Duration::from_secs(2);
/// The HTTP status for a watch from a version that the API server no longer knows.
const GONE: u16 = 410;

/// What the next session goes on from.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The version up to which all changes were sent on. `None`: a list is due.
    version: Option<String>,
    /// The last version that was known.
    last: Option<String>,
    /// The API server could not serve the last list from its cache.
    needs_newest: bool,
}

impl Position {
    /// A list is due: the changes after the version are lost.
    fn lose(&mut self) {
        self.last = self.version.take().or_else(|| self.last.take());
    }

    fn age(&self) -> Age {
        match &self.last {
            _ if self.needs_newest => Age::Newest,
            Some(version) => Age::NotBefore(version.clone()),
            None => Age::Any,
        }
    }
}

/// Whose changes go where.
pub(super) struct Session<'a> {
    pub(super) connection: &'a Connection,
    /// This node's name, and its annotations.
    pub(super) name: &'a str,
    pub(super) seen: &'a watch::Sender<Seen>,
    pub(super) updates: &'a Sender<Update>,
    /// The number of nodes of the last list.
    pub(super) nodes: &'a AtomicU32,
    /// A watch that says nothing for so long is dead.
    pub(super) idle: Duration,
}

impl Session<'_> {
    /// Follows the nodes. Returns if the receiver is gone.
    pub(super) async fn follow(&self, position: &mut Position) -> Result<()> {
        loop {
            let version = match &position.version {
                Some(version) => version.clone(),
                None => {
                    let (peers, version) = match self.list(&position.age()).await {
                        Err(error) => {
                            // Such as a cache that is older than the version. Others do not make etcd send all lists.
                            position.needs_newest = error
                                .downcast_ref()
                                .is_some_and(|refused: &Refused| refused.is_about_version());
                            return Err(error);
                        }
                        Ok(list) => list,
                    };
                    self.nodes.store(u32::try_from(peers.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
                    if self.updates.send(Update::List(peers)).await.is_err() {
                        return Ok(());
                    }
                    (position.version, position.needs_newest) = (Some(version.clone()), false);
                    if self.updates.send(Update::State(Ok(()))).await.is_err() {
                        return Ok(());
                    }
                    version
                }
            };
            let begin = Instant::now();
            match self.connection.watch(&version).await {
                Err(error) if error.downcast_ref().is_some_and(|refused: &Refused| refused.code == GONE) => {
                    position.lose();
                }
                Err(error) => return Err(error),
                Ok(watch) => match self.read(watch, position).await? {
                    End::Again => {
                        sleep_until(begin + SHORTEST).await;
                        continue;
                    }
                    End::List => position.lose(),
                    End::Closed => return Ok(()),
                },
            }
            // All nodes need a new list if the API server has lost its history.
            sleep(spread(self.nodes)).await;
        }
    }

    /// All nodes, and the version of the list.
    async fn list(&self, age: &Age) -> Result<(Peers, String)> {
        let (mut peers, mut token, mut annotations) = (Peers::new(), None, None);
        loop {
            let page = self.connection.list(age, token, |node| {
                if node.metadata.name == self.name {
                    annotations = Some(node.annotations());
                }
                peers.extend(check(node));
            });
            let page = page.await?;
            token = page.next.filter(|next| !next.is_empty());
            if token.is_none() {
                self.note(annotations.unwrap_or_default());
                return Ok((peers, page.resource_version));
            }
        }
    }

    /// Notes the annotations of this node's object.
    fn note(&self, annotations: BTreeMap<String, String>) {
        let annotations = Some(annotations);
        self.seen.send_if_modified(|seen| std::mem::replace(seen, annotations.clone()) != annotations);
    }

    async fn read(&self, watch: impl AsyncBufRead, position: &mut Position) -> Result<End> {
        let mut watch = std::pin::pin!(watch);
        let (begin, mut line) = (Instant::now(), Vec::new());
        let (mut works, mut has_said) = (false, false);
        loop {
            let room = MAX_LINE.saturating_sub(line.len() as u64);
            let mut limited = watch.as_mut().take(room);
            let limit = if works { self.idle } else { self.idle.min(WORKS) };
            match timeout(limit, limited.read_until(b'\n', &mut line)).await {
                Ok(read) => drop(read.context("read the watch")?),
                Err(_) if limit < self.idle => {
                    works = true;
                    if self.updates.send(Update::State(Ok(()))).await.is_err() {
                        return Ok(End::Closed);
                    }
                    continue;
                }
                // The API server sends a bookmark each minute: this connection is dead, or the API server hangs.
                Err(_) => {
                    position.lose();
                    bail!("the watch has said nothing for {:?}", self.idle);
                }
            }
            if !line.ends_with(b"\n") {
                match line.len() {
                    0 if has_said || begin.elapsed() >= USUAL => return Ok(End::Again),
                    0 => bail!("the watch has ended at once, without a word"),
                    len if len as u64 >= MAX_LINE => position.lose(),
                    _ => {}
                }
                bail!("the watch ended in a line, after {} bytes", line.len());
            }
            has_said = true;
            let event = serde_json::from_slice::<WatchEvent<Node>>(&line).inspect_err(|_| position.lose());
            line.clear();
            let (version, update) = match event.context("read the watch")? {
                WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                    if node.metadata.name == self.name {
                        self.note(node.annotations());
                    }
                    let version = node.metadata.resource_version.clone();
                    (version, check(node).map(|(name, peer)| Update::Changed(name, Box::new(peer))))
                }
                WatchEvent::Deleted(node) => {
                    if node.metadata.name == self.name {
                        self.note(BTreeMap::new());
                    }
                    (node.metadata.resource_version, Some(Update::Gone(node.metadata.name)))
                }
                WatchEvent::Bookmark(bookmark) => (bookmark.metadata.resource_version, None),
                WatchEvent::Error(status) if status.code == GONE => return Ok(End::List),
                WatchEvent::Error(status) => {
                    position.lose();
                    bail!("the API server ends the watch: {}", status.message);
                }
            };
            if position.version.as_ref().is_some_and(|known| is_older(&version, known)) {
                (position.version, position.last) = (None, None);
                position.needs_newest = true;
                bail!("the API server has gone back to version {}", version.escape_default());
            }
            let state = (!works).then_some(Update::State(Ok(())));
            works = true;
            for update in state.into_iter().chain(update) {
                if self.updates.send(update).await.is_err() {
                    return Ok(End::Closed);
                }
            }
            position.version = Some(version);
        }
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

/// Whether the first one of two versions is the older one, as after a restore of etcd. Others than numbers are not compared.
fn is_older(version: &str, than: &str) -> bool {
    let number = |text: &str| text.parse::<u128>().ok();
    number(version).zip(number(than)).is_some_and(|(version, than)| version < than)
}

/// The next step after a watch.
enum End {
    /// Another watch, from the last version on.
    Again,
    /// A new list.
    List,
    /// The receiver is gone.
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_from_the_cache_unless_it_cannot_serve_them() {
        let mut position = Position::default();
        assert_eq!(position.age(), Age::Any);
        position.version = Some("7".into());
        position.lose();
        assert_eq!((position.age(), &position.version), (Age::NotBefore("7".into()), &None));
        position.lose();
        assert_eq!(position.age(), Age::NotBefore("7".into()), "a second failure forgets nothing");
        position.needs_newest = true;
        assert_eq!(position.age(), Age::Newest);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, than, expected) in
            [("9", "10", true), ("10", "9", false), ("10", "10", false), ("x", "10", false), ("9", "", false)]
        {
            assert_eq!(is_older(version, than), expected, "{version} {than}");
        }
    }
}

//! A list of the objects of one kind and the watches after it. After a failure the next session goes on where this one has ended.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use futures_util::io::{AsyncBufRead, AsyncBufReadExt as _};
use kube::core::WatchEvent;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::{Age, Connection, NOT_FOUND, Refused, within};
use super::decode::Head;
use super::items::Items;
use super::kind::{Kind, read};
use super::line::Line;
use super::{pause_without_kind, spread};
use crate::cluster::ListMetadata;

/// The longest time of a whole list: 5,000 nodes of 20 kB are 100 MB.
const LIST: Duration = Duration::from_secs(300);
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
    /// How often in a row the cluster had no such kind.
    absent: u32,
}

impl Position {
    /// A list is due: the changes after the version are lost.
    fn lose(&mut self) {
        self.last = self.version.take().or_else(|| self.last.take());
    }

    /// Whether all nodes may ask for this list at once: the changes since the last one are lost.
    fn is_again(&self) -> bool {
        self.last.is_some() || self.needs_newest
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
pub(super) struct Session<'a, K: Kind> {
    pub(super) connection: &'a Connection,
    pub(super) kind: &'a mut K,
    pub(super) messages: &'a Sender<K::Message>,
    /// The number of nodes of the last list.
    pub(super) nodes: &'a AtomicU32,
    /// A watch that says nothing for so long is dead.
    pub(super) idle: Duration,
    /// The longest pause after failures.
    pub(super) longest: Duration,
}

/// The receiver of the messages is gone.
struct Closed;

impl<K: Kind> Session<'_, K> {
    /// Follows the objects. Returns if the receiver is gone.
    pub(super) async fn follow(&mut self, position: &mut Position) -> Result<()> {
        loop {
            let version = match &position.version {
                Some(version) => version.clone(),
                None => {
                    // All nodes need a new list if the API server has lost its history.
                    if position.is_again() {
                        sleep(spread(self.nodes, K::COST)).await;
                    }
                    let version = match self.list(&position.age()).await {
                        Err(error) if is_not_found(&error) && K::CRD.is_some() => {
                            if self.absent(error, position).await?.is_err() {
                                return Ok(());
                            }
                            position.absent = position.absent.saturating_add(1);
                            sleep(pause_without_kind(position.absent, self.longest)).await;
                            continue;
                        }
                        Err(error) => {
                            // Such as a cache that is older than the version. Others do not make etcd send all lists.
                            position.needs_newest = error
                                .downcast_ref()
                                .is_some_and(|refused: &Refused| refused.is_about_version());
                            return Err(error);
                        }
                        Ok(None) => return Ok(()),
                        Ok(Some(version)) => version,
                    };
                    if std::mem::take(&mut position.absent) > 0 {
                        log!("the cluster has {} now", K::WORD);
                    }
                    (position.version, position.needs_newest) = (Some(version.clone()), false);
                    version
                }
            };
            let begin = Instant::now();
            let watch = self.connection.watch(K::PATH, &version).await;
            match watch.with_context(|| format!("watch the {}", K::WORD)) {
                Err(error) if error.downcast_ref().is_some_and(|refused: &Refused| refused.code == GONE) => {
                    position.lose();
                }
                Err(error) if is_not_found(&error) && K::CRD.is_some() => position.lose(),
                Err(error) => return Err(error),
                Ok(watch) => match self.read(watch, position).await? {
                    End::Again => sleep_until(begin + SHORTEST).await,
                    End::List => position.lose(),
                    End::Closed => return Ok(()),
                },
            }
        }
    }

    /// The path does not exist. Only without its CustomResourceDefinition are there no objects, and only the API server's word for it counts: a
    /// CRD that serves other versions may have objects that deny.
    async fn absent(&mut self, error: Error, position: &mut Position) -> Result<Result<(), Closed>> {
        let Some(crd) = K::CRD else { return Err(error) };
        let served = self.connection.served(crd).await.with_context(|| format!("read the CRD {crd}"))?;
        if let Some(served) = served {
            let served: String = served.join(", ").escape_default().take(80).collect();
            bail!("{error:#}; the CRD {crd} exists, and serves: {served}");
        }
        if position.absent == 0 {
            log!("the cluster has no {}: asks again from time to time", K::WORD);
            *position = Position::default();
            self.kind.begin();
            let complete = self.kind.complete();
            if self.send([complete]).await.is_err() {
                return Ok(Err(Closed));
            }
        }
        Ok(self.send([K::state(Ok(()))]).await)
    }

    /// Sends all objects on. Returns the version of the list; `None` if the receiver is gone.
    async fn list(&mut self, age: &Age) -> Result<Option<String>> {
        self.kind.begin();
        let mut token = None;
        loop {
            let page = timeout(LIST, self.page(age, token)).await;
            let page = page.map_err(|_| anyhow!("the answer took longer than {LIST:?}")).flatten();
            let page = page.with_context(|| format!("list the {}", K::WORD))?;
            let Ok(page) = page else { return Ok(None) };
            token = page.next.filter(|next| !next.is_empty());
            if token.is_none() {
                let complete = self.kind.complete();
                let is_sent = self.send([complete, K::state(Ok(()))]).await;
                return Ok(is_sent.is_ok().then_some(page.resource_version));
            }
        }
    }

    async fn page(&mut self, age: &Age, token: Option<String>) -> Result<Result<ListMetadata, Closed>> {
        let answer = self.connection.list(K::PATH, age, token).await?;
        let (mut answer, mut items, mut messages) = (std::pin::pin!(answer), Items::default(), Vec::new());
        loop {
            let piece = within(async { Ok(answer.fill_buf().await?) }).await?;
            if piece.is_empty() {
                return items.finish().map(Ok);
            }
            items.take(piece, |item, is_cut| {
                messages.extend(self.kind.listed(read::<K>(item, is_cut)?));
                Ok(())
            })?;
            let len = piece.len();
            answer.consume_unpin(len);
            if let Err(closed) = self.send(messages.drain(..)).await {
                return Ok(Err(closed));
            }
        }
    }

    async fn send(&self, messages: impl IntoIterator<Item = K::Message>) -> Result<(), Closed> {
        for message in messages {
            self.messages.send(message).await.map_err(|_| Closed)?;
        }
        Ok(())
    }

    async fn read(&mut self, watch: impl AsyncBufRead, position: &mut Position) -> Result<End> {
        let mut watch = std::pin::pin!(watch);
        let (begin, mut line) = (Instant::now(), Line::default());
        let (mut works, mut has_said) = (false, false);
        loop {
            let limit = if works { self.idle } else { self.idle.min(WORKS) };
            let is_whole = match timeout(limit, line.read(&mut watch)).await {
                Ok(read) => read.context("read the watch")?,
                Err(_) if limit < self.idle => {
                    works = true;
                    if self.send([K::state(Ok(()))]).await.is_err() {
                        return Ok(End::Closed);
                    }
                    continue;
                }
                // The API server sends a bookmark each minute: this connection is dead, or the API server hangs.
                Err(_) => {
                    position.lose();
                    bail!("the watch has said nothing for {:?}", self.idle);
                }
            };
            if !is_whole {
                match line.text().len() {
                    0 if has_said || begin.elapsed() >= USUAL => return Ok(End::Again),
                    0 => bail!("the watch has ended at once, without a word"),
                    len => bail!("the watch ended in a line, after {len} bytes"),
                }
            }
            has_said = true;
            let event = event::<K>(&line).inspect_err(|_| position.lose());
            line.clear();
            let (version, message) = match event.context("read the watch")? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    (K::version(&object).to_owned(), self.kind.changed(object))
                }
                WatchEvent::Deleted(object) => (K::version(&object).to_owned(), self.kind.gone(object)),
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
            let state = (!works).then(|| K::state(Ok(())));
            works = true;
            if self.send(state.into_iter().chain(message)).await.is_err() {
                return Ok(End::Closed);
            }
            position.version = Some(version);
        }
    }
}

/// Reads a line of a watch, or at least the head of its object.
pub(super) fn event<K: Kind>(line: &Line) -> Result<WatchEvent<K::Object>> {
    let why = match serde_json::from_slice(line.text()) {
        Ok(event) => return Ok(event),
        Err(_) if line.is_cut() => line.too_large(),
        Err(error) => Error::from(error),
    };
    let head = Head::read(line.text());
    let of: fn(K::Object) -> WatchEvent<K::Object> = match head.event.as_str() {
        // A watch goes on from the version of its last event.
        _ if head.version.is_empty() => return Err(why),
        "ADDED" => WatchEvent::Added,
        "MODIFIED" => WatchEvent::Modified,
        "DELETED" => WatchEvent::Deleted,
        _ => return Err(why),
    };
    K::unread(head, why).map(of)
}

fn is_not_found(error: &Error) -> bool {
    error.downcast_ref().is_some_and(|refused: &Refused| refused.code == NOT_FOUND)
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

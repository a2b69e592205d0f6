//! Watches.

use std::time::Duration;

use http_body_util::channel::Sender;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::access::Request;
use crate::answer::{kind, selector};
use crate::faults::Faults;
use crate::path::Target;
use crate::refusal::Refusal;
use crate::select::Selector;
use crate::store::{Change, Store};

/// A watch that runs.
#[derive(Debug)]
pub(crate) struct Watch {
    store: Store,
    path: String,
    target: Target,
    selector: Selector,
    /// Changes after this revision are news. 0: the present objects are.
    seen: u64,
    bookmarks: bool,
    /// The client has asked for the present objects, and for a bookmark after them.
    initial: bool,
    end: Instant,
    faults: watch::Receiver<Faults>,
}

impl Watch {
    pub(crate) fn new(
        store: &Store,
        request: &Request,
        target: Target,
        faults: watch::Receiver<Faults>,
    ) -> Result<Watch, Refusal> {
        let initial = request.is_set("sendInitialEvents");
        let seen = match request.value("resourceVersion") {
            _ if initial => 0,
            "" => 0,
            text => {
                let invalid = |_| Refusal::new("BadRequest", format!("invalid resource version {text:?}"));
                text.parse().map_err(invalid)?
            }
        };
        let longest = faults.borrow().longest_watch;
        let wanted = request.value("timeoutSeconds").parse().map_or(longest, Duration::from_secs);
        Ok(Watch {
            store: store.clone(),
            path: request.path.clone(),
            selector: selector(request, &target)?,
            target,
            seen,
            bookmarks: request.is_set("allowWatchBookmarks"),
            initial,
            end: Instant::now() + wanted.min(longest),
            faults,
        })
    }

    /// Sends lines until the client goes, the time is over or the history is forgotten.
    pub(crate) async fn run(mut self, mut body: Sender<Bytes>) {
        let mut newest = self.store.subscribe();
        let mut bookmark = Instant::now() + self.faults.borrow().bookmarks;
        loop {
            let Faults { mute, bookmarks, .. } = self.faults.borrow_and_update().at(&self.path);
            let (mut lines, expired) = if mute { Default::default() } else { self.news() };
            let now = Instant::now();
            if now >= bookmark || now >= self.end {
                bookmark = now + bookmarks;
                if self.bookmarks && !mute && !expired {
                    lines += &self.bookmark(json!({}));
                }
            }
            if !lines.is_empty() && body.send_data(lines.into()).await.is_err() {
                return;
            }
            if expired || now >= self.end {
                return;
            }
            tokio::select! {
                _ = newest.changed() => {}
                _ = self.faults.changed() => {}
                () = sleep_until(self.end.min(bookmark)) => {}
            }
        }
    }

    /// The lines that the client has not seen, and whether the watch has to end.
    fn news(&mut self) -> (String, bool) {
        let store = self.store.clone();
        let content = store.lock();
        let mut lines = String::new();
        if self.seen == 0 {
            let present = content.of(&self.target).filter(|(_, object)| self.selector.selects(object));
            lines.extend(present.map(|(_, object)| line("ADDED", object)));
        } else if self.seen < content.compacted {
            let text = format!("too old resource version: {} ({})", self.seen, content.compacted);
            return (line("ERROR", &Refusal::new("Expired", text).to_json()), true);
        } else {
            let from = content.changes.partition_point(|change| change.revision <= self.seen);
            lines.extend(content.changes[from..].iter().filter_map(|change| self.line(change)));
        }
        self.seen = content.revision;
        drop(content);
        if std::mem::take(&mut self.initial) {
            lines += &self.bookmark(json!({"k8s.io/initial-events-end": "true"}));
        }
        (lines, false)
    }

    /// The event of a change for a client that sees only the selected objects.
    fn line(&self, change: &Change) -> Option<String> {
        if !self.target.covers(&change.key) {
            return None;
        }
        let before = change.old.as_ref().is_some_and(|old| self.selector.selects(old));
        let after = !change.deleted && self.selector.selects(&change.new);
        let kind = match (before, after) {
            (false, false) => return None,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        Some(line(kind, &change.new))
    }

    fn bookmark(&self, annotations: Value) -> String {
        let kind = kind(&self.store.lock(), &self.target);
        let metadata = json!({"resourceVersion": self.seen.to_string(), "annotations": annotations});
        let api_version = self.target.resource.api_version();
        line("BOOKMARK", &json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}))
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

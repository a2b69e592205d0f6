//! What this node wants to tell the API server. A request that fails is sent again, also by the next connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::client::{Connection, Refused};
use super::event::Event;
use super::{Report, pause, spread};

/// The most events that wait. The oldest ones go.
const MAX_EVENTS: usize = 256;
/// The longest pause after failures.
const LONGEST: Duration = Duration::from_secs(60);
/// How long an annotation that another client changes stays as it is.
const HOLD: Duration = Duration::from_secs(10);
/// The HTTP statuses for an object that the API server will never accept.
const INVALID: [u16; 2] = [400, 422];

/// This node's annotations of ours, as the Node object has them. `None` until the first list.
pub(super) type Seen = Option<BTreeMap<String, String>>;

pub(super) struct Outbox {
    node: String,
    events: VecDeque<Event>,
    /// The wanted annotations, and when each was written.
    annotations: BTreeMap<&'static str, (String, Option<Instant>)>,
    /// Rounds with a failure, one after another.
    failures: u32,
    /// The next round.
    due: Option<Instant>,
    /// The last error, which is logged once.
    told: String,
}

impl Outbox {
    pub(super) fn new(node: String) -> Outbox {
        Outbox {
            node,
            events: VecDeque::new(),
            annotations: BTreeMap::new(),
            failures: 0,
            due: None,
            told: String::new(),
        }
    }

    /// Sends reports, those from before first, and keeps the annotations as wanted. Never ends. Safe to cancel: nothing is lost.
    pub(super) async fn send(
        &mut self,
        connection: &Connection,
        reports: &mut mpsc::Receiver<Report>,
        mut seen: watch::Receiver<Seen>,
        nodes: &AtomicU32,
    ) {
        self.due = Some(Instant::now());
        loop {
            let due = self.due;
            tokio::select! {
                Some(report) = reports.recv() => {
                    // Other nodes may see the same fault.
                    let wait = if matches!(report, Report::Event(_)) { spread(nodes, 1) } else { Duration::ZERO };
                    self.take(report, Instant::now() + wait);
                }
                Ok(()) = seen.changed() => self.soon(Instant::now()),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let present = seen.borrow_and_update().clone();
                    self.round(connection, &present).await;
                }
                else => std::future::pending().await,
            }
        }
    }

    /// Takes a report, which is sent at this time.
    fn take(&mut self, report: Report, at: Instant) {
        match report {
            Report::Event(event) => {
                if self.events.len() >= MAX_EVENTS {
                    self.events.pop_front();
                }
                self.events.push_back(event);
            }
            Report::Annotation { name, value } => {
                if self.annotations.get(name).is_some_and(|(wanted, _)| *wanted == value) {
                    return;
                }
                self.annotations.insert(name, (value, None));
            }
        }
        self.soon(at);
    }

    /// Something is to be sent, unless a pause runs.
    fn soon(&mut self, at: Instant) {
        if self.failures == 0 {
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
    }

    /// Sends everything once.
    async fn round(&mut self, connection: &Connection, seen: &Seen) {
        let (mut error, mut next) = (None, None::<Instant>);
        for name in self.annotations.keys().copied().collect::<Vec<_>>() {
            let Some(at) = self.due_of(name, seen) else { continue };
            if at > Instant::now() {
                next = Some(next.map_or(at, |next| next.min(at)));
                continue;
            }
            let Some((value, written)) = self.annotations.get_mut(name) else { continue };
            match connection.annotate(&self.node, name, value).await {
                Ok(()) => *written = Some(Instant::now()),
                Err(failure) => {
                    error = Some(failure.context(format!("write {name} into this node's object")));
                }
            }
        }
        for _ in 0..self.events.len() {
            let Some(event) = self.events.front() else { break };
            let outcome = connection.create_event(event.namespace(), &event.to_json(&self.node)).await;
            let Some(event) = self.events.pop_front() else { break };
            let Err(failure) = outcome else { continue };
            let refused =
                failure.downcast_ref().is_some_and(|refused: &Refused| INVALID.contains(&refused.code));
            error = Some(failure.context(format!("create an event about {}", event.about)));
            if !refused {
                self.events.push_back(event);
            }
        }
        self.failures = if error.is_some() { self.failures.saturating_add(1) } else { 0 };
        self.due = match &error {
            Some(_) => Some(Instant::now() + pause(self.failures, LONGEST)),
            None => next,
        };
        let told = error.map_or_else(String::new, |error| format!("{error:#}"));
        if !told.is_empty() && told != self.told {
            log!("API server: {told}");
        }
        self.told = told;
    }

    /// When an annotation is to be written; `None` if the object has it, or before the first list.
    fn due_of(&self, name: &str, seen: &Seen) -> Option<Instant> {
        let (wanted, written) = self.annotations.get(name)?;
        let is_there = seen.as_ref()?.get(name) == Some(wanted);
        // The watch tells of our own change after the answer to it.
        (!is_there).then(|| written.map_or_else(Instant::now, |written| written + HOLD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::event::About;

    fn event(number: usize) -> Report {
        let fault = number.to_string();
        Report::Event(Event { about: About::Node("n".into()), reason: "R", fault, message: String::new() })
    }

    #[test]
    fn the_queue_is_bounded_and_a_pause_is_kept() {
        let (mut outbox, now) = (Outbox::new("n1".into()), Instant::now());
        (0..MAX_EVENTS + 2).for_each(|number| outbox.take(event(number), now));
        assert_eq!((outbox.events.len(), outbox.events[0].fault.as_str()), (MAX_EVENTS, "2"));
        assert_eq!(outbox.due, Some(now));
        (outbox.failures, outbox.due) = (1, Some(now + LONGEST));
        outbox.take(event(0), now);
        assert_eq!(outbox.due, Some(now + LONGEST));
    }

    #[test]
    fn an_annotation_is_written_if_the_object_lacks_it() {
        let (mut outbox, now) = (Outbox::new("n1".into()), Instant::now());
        let wish = |value: &str| Report::Annotation { name: "k", value: value.into() };
        let seen = |value: &str| Some(BTreeMap::from([("k".to_owned(), value.to_owned())]));
        outbox.take(wish("a"), now);
        let is_due = |outbox: &Outbox, seen: &Seen| outbox.due_of("k", seen).map(|at| at <= Instant::now());
        assert_eq!(is_due(&outbox, &None), None, "nothing is known yet");
        assert_eq!(is_due(&outbox, &seen("a")), None);
        assert_eq!(is_due(&outbox, &Some(BTreeMap::new())), Some(true));
        // Somebody changes it again and again.
        outbox.annotations.get_mut("k").unwrap().1 = Some(Instant::now());
        assert_eq!(is_due(&outbox, &seen("b")), Some(false));
        outbox.take(wish("a"), now);
        assert_eq!(is_due(&outbox, &seen("b")), Some(false), "the same wish changes nothing");
        outbox.take(wish("c"), now);
        assert_eq!(is_due(&outbox, &seen("a")), Some(true));
    }
}

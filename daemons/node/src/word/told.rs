//! The events of a change: one for each new reason, and one when the node is ready again.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use super::{Code, Verdict, Word};
use crate::api::{About, Event, READY};

/// A node that is well and ill by turns has one event in so many seconds.
const CALM: u64 = 600;

/// The reasons that have been told.
#[derive(Debug, Default)]
pub struct Told {
    reasons: BTreeSet<(Code, String)>,
    is_ill: bool,
}

impl Told {
    /// The events for a new verdict. `node`: this node.
    pub fn news(&mut self, node: &str, verdict: &Verdict, now: SystemTime) -> Vec<Event> {
        let mut events = Vec::new();
        let mut reasons = BTreeSet::new();
        for reason in verdict.reasons.iter().filter(|reason| reason.code.word() != Word::Waiting) {
            let key = (reason.code, reason.about.clone());
            if !self.reasons.contains(&key) {
                let subject = match reason.code.is_about_node() {
                    true => reason.about.split(' ').next().unwrap_or_default(),
                    false => node,
                };
                // All nodes that see a fault of another node name it alike.
                let fault = format!("{} {}", reason.code.key(), reason.about);
                let message = format!("{}. To do: {}", reason.text, reason.code.remedy());
                // The line that counts the rest.
                if !subject.is_empty() {
                    events.push(Event {
                        about: About::Node(subject.to_owned()),
                        reason: name(reason.code),
                        fault,
                        message,
                    });
                }
            }
            reasons.insert(key);
        }
        self.reasons = reasons;
        match verdict.word {
            Word::Degraded | Word::NotReady => self.is_ill = true,
            Word::Waiting => {}
            Word::Ready if std::mem::take(&mut self.is_ill) => {
                let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
                let fault = format!("ready {}", since.as_secs() / CALM);
                let message = "the pods of this node can talk again".to_owned();
                events.push(Event { about: About::Node(node.to_owned()), reason: READY, fault, message });
            }
            Word::Ready => {}
        }
        events
    }
}

/// The event's reason.
fn name(code: Code) -> &'static str {
    match code {
        Code::Refused => "PodNetworkRefused",
        _ if code.word() == Word::NotReady => "PodNetworkNotReady",
        _ => "PodNetworkDegraded",
    }
}

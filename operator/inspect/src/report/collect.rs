//! Runs the parts of a report side by side. One that fails, or does not end in time, leaves a line.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::mask::Mask;
use super::mask::names::{Class, Names};
use crate::line::{Text, clean};
use crate::text::beginning;

/// The most bytes of a text: one with rules of a large node is cut.
const LONGEST: usize = 1 << 20;
/// The most bytes of a document. The parts keep to less.
const DOCUMENT: usize = 8 << 20;
/// From this length on, a document is one line.
const READABLE: usize = 1 << 16;

/// The content of a file.
pub(super) enum Content {
    Text(String),
    /// The text of a program that lists rules of a firewall.
    Rules(String),
    Json(Value),
}

/// A file of the report.
pub(super) struct File {
    pub(super) name: String,
    pub(super) content: Content,
}

impl File {
    pub(super) fn text(name: impl Into<String>, text: impl Into<String>) -> File {
        File { name: name.into(), content: Content::Text(text.into()) }
    }

    pub(super) fn json(name: impl Into<String>, value: Value) -> File {
        File { name: name.into(), content: Content::Json(value) }
    }

    /// The names in it.
    pub(super) fn learn(&self, names: &mut Names) {
        if let Content::Json(value) = &self.content {
            names.learn_from(value);
        }
    }

    /// Its clean and masked text. A document is readable if it is small, and else on one line.
    pub(super) fn masked(&self, mask: &Mask) -> String {
        let value = match &self.content {
            Content::Text(text) => return cut(mask.text(&cleaned(text)), LONGEST),
            Content::Rules(text) => return cut(mask.rules(&cleaned(text)), LONGEST),
            Content::Json(value) => mask.json(value),
        };
        let line = value.to_string();
        let text = if line.len() < READABLE { format!("{value:#}") } else { line };
        cut(Text::json(format_args!("{text}\n")).to_string(), DOCUMENT)
    }
}

/// The beginning of a text that is too long.
fn cut(text: String, most: usize) -> String {
    match beginning(&text, most) {
        whole if whole.len() == text.len() => text,
        start => format!("{start}\n(the rest is left out)\n"),
    }
}

/// The beginning of a text, without the colours of tables too: names may have them.
fn cleaned(text: &str) -> String {
    let lines = beginning(text, LONGEST + 1).split('\n').map(|line| clean(&line.replace('\t', "    ")));
    lines.collect::<Vec<_>>().join("\n")
}

/// What a part has found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) files: Vec<File>,
    /// Names that the files do not name as such.
    pub(super) names: Vec<(Class, String)>,
    /// Documents that teach names and are no files.
    pub(super) learned: Vec<Value>,
    pub(super) failures: Vec<String>,
}

impl Found {
    pub(super) fn file(file: File) -> Found {
        Found { files: vec![file], ..Found::default() }
    }

    pub(super) fn failed(why: impl ToString) -> Found {
        Found { failures: vec![why.to_string()], ..Found::default() }
    }
}

/// A part: its name, and what it does.
pub(super) type Part = (&'static str, Box<dyn FnOnce() -> Found + Send>);

/// What has become of a part.
pub(super) struct Outcome {
    pub(super) part: &'static str,
    /// How long it took, if it has ended.
    pub(super) took: Option<Duration>,
    pub(super) files: Vec<File>,
    pub(super) names: Vec<(Class, String)>,
    pub(super) learned: Vec<Value>,
    pub(super) failures: Vec<String>,
}

/// Runs the parts, a thread for each, and returns at `end` at the latest.
pub(super) fn collect(parts: Vec<Part>, end: Instant) -> Vec<Outcome> {
    let names: Vec<&'static str> = parts.iter().map(|(name, _)| *name).collect();
    let shared = Arc::new((Mutex::new(Vec::<(usize, Duration, Found)>::new()), Condvar::new()));
    let mut started = 0;
    for (at, (_, work)) in parts.into_iter().enumerate() {
        let shared = Arc::clone(&shared);
        let run = move || {
            let began = Instant::now();
            let found = work();
            let (ended, changed) = &*shared;
            ended.lock().unwrap_or_else(PoisonError::into_inner).push((at, began.elapsed(), found));
            changed.notify_one();
        };
        started += usize::from(thread::Builder::new().spawn(run).is_ok());
    }
    let (ended, changed) = &*shared;
    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
    while ended.len() < started {
        let rest = end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            break;
        }
        ended = changed.wait_timeout(ended, rest).unwrap_or_else(PoisonError::into_inner).0;
    }
    let mut outcomes: Vec<Outcome> = names.into_iter().map(Outcome::missing).collect();
    for (at, took, Found { files, names, learned, failures }) in ended.drain(..) {
        let part = outcomes[at].part;
        outcomes[at] = Outcome { part, took: Some(took), files, names, learned, failures };
    }
    outcomes
}

impl Outcome {
    fn missing(part: &'static str) -> Outcome {
        let failures = vec!["did not end in time, or could not be started".to_owned()];
        Outcome { part, took: None, files: Vec::new(), names: Vec::new(), learned: Vec::new(), failures }
    }
}

/// A document with failures instead of a file that cannot be read.
pub(super) fn unread(why: impl ToString) -> Value {
    json!({"failure": why.to_string()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_hangs_or_panics_costs_only_itself() {
        let parts: Vec<Part> = vec![
            (
                "hangs",
                Box::new(|| {
                    thread::sleep(Duration::from_secs(600));
                    Found::default()
                }),
            ),
            ("panics", Box::new(|| panic!("as planned"))),
            ("works", Box::new(|| Found::file(File::text("a", "b")))),
        ];
        let outcomes = collect(parts, Instant::now() + Duration::from_secs(1));
        let seen: Vec<_> = outcomes
            .iter()
            .map(|one| (one.part, one.took.is_some(), one.files.len(), one.failures.len()))
            .collect();
        assert_eq!(seen, [("hangs", false, 0, 1), ("panics", false, 0, 1), ("works", true, 1, 0)]);
    }
}

//! Plugin calls and what tests expect of them.

use std::fmt;
use std::sync::Barrier;
use std::thread;

use cni_runner::{Exec, Output};
use serde_json::Value;

use super::VERSIONS;
use crate::Place;

/// Makes a call that must succeed with a result.
pub fn succeed(place: &impl Place, exec: &Exec) -> Value {
    place.call(exec).unwrap().result()
}

/// Makes a call that must succeed and print nothing.
pub fn succeed_silently(place: &impl Place, exec: &Exec) {
    place.call(exec).unwrap().ok();
}

/// Makes a call that must fail with this code.
pub fn fail(place: &impl Place, exec: &Exec, code: u64) -> ErrorObject {
    place.call(exec).unwrap().error().with_code(code)
}

/// Starts all calls at the same time. Returns their outputs in the same order.
pub fn at_once(place: &impl Place, calls: &[Exec]) -> Vec<Output> {
    let start = Barrier::new(calls.len());
    let call = |exec: &Exec| {
        let run = || {
            start.wait();
            exec.run().unwrap()
        };
        place.run(run).unwrap()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = calls.iter().map(|exec| scope.spawn(|| call(exec))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Expectations of a call's output.
pub trait Expect {
    /// The result of a call that must have succeeded with one JSON document.
    fn result(&self) -> Value;

    /// Panics unless the call has succeeded and printed nothing.
    fn ok(&self);

    /// The error of a call that must have failed with status 1 and one valid error object.
    fn error(&self) -> ErrorObject;

    /// The addresses in the result, without prefix lengths.
    fn ips(&self) -> Vec<String> {
        ips_of(&self.result())
    }
}

/// The addresses in a result, without prefix lengths.
pub fn ips_of(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap_or_else(|| panic!("no ips: {result}"));
    ips.iter().map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

impl Expect for Output {
    fn result(&self) -> Value {
        assert!(self.success(), "{}", described(self));
        self.document().unwrap_or_else(|error| panic!("{error}: {}", described(self)))
    }

    fn ok(&self) {
        assert!(self.success() && self.stdout.is_empty(), "{}", described(self));
    }

    fn error(&self) -> ErrorObject {
        assert_eq!(self.status.code(), Some(1), "{}", described(self));
        let object = self.document().unwrap_or_else(|error| panic!("{error}: {}", described(self)));
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let error = ErrorObject {
            version: text("cniVersion"),
            code: object["code"].as_u64().unwrap_or_else(|| panic!("no code: {object}")),
            msg: text("msg"),
            details: text("details"),
        };
        assert!(VERSIONS.contains(&error.version.as_str()), "{object}");
        assert!(!error.msg.is_empty(), "{object}");
        // An error without details does not have the key.
        assert_eq!(object.get("details").is_some(), !error.details.is_empty(), "{object}");
        error
    }
}

fn described(output: &Output) -> String {
    format!("{}\nstdout: {}\nstderr: {}", output.status, output.stdout_text(), output.stderr_text())
}

/// The error object of a failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorObject {
    /// `cniVersion`.
    pub version: String,
    /// `code`.
    pub code: u64,
    /// `msg`.
    pub msg: String,
    /// `details`, or an empty text.
    pub details: String,
}

impl fmt::Display for ErrorObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} (code {})", self.msg, self.details, self.code)
    }
}

impl ErrorObject {
    /// The same error; panics unless it has this code.
    pub fn with_code(self, code: u64) -> ErrorObject {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Whether the message or the details contain this text.
    pub fn contains(&self, text: &str) -> bool {
        self.msg.contains(text) || self.details.contains(text)
    }

    /// Panics unless the error has this code and contains this text.
    pub fn expect(&self, code: u64, text: &str) {
        assert!(self.code == code && self.contains(text), "expected {text:?} with code {code}, got {self:?}");
    }

    /// Code and message.
    pub fn pair(self) -> (u64, String) {
        (self.code, self.msg)
    }
}

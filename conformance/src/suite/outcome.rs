//! How a trial ends.

use std::fmt::Display;

/// What a trial comes to: the plugin did as demanded, or this.
pub type TestResult = Result<(), Stop>;

/// Why a trial ends before its end.
#[derive(Debug)]
pub enum Stop {
    /// The plugin did not do as demanded.
    Mismatch(Box<Mismatch>),
    /// It cannot be tried here, for this reason.
    Skip(String),
    /// The suite itself failed, or the machine did.
    Broken(anyhow::Error),
}

/// What a plugin did instead of what is demanded.
#[derive(Debug, Clone)]
pub struct Mismatch {
    /// What should have been.
    pub expected: String,
    /// What was.
    pub seen: String,
    /// The call that showed it, as a shell command; none if the fault is not in an answer.
    pub call: Option<String>,
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Broken(error.into())
    }
}

/// Ends a trial: it cannot be tried here.
pub fn skip<T>(why: impl Display) -> Result<T, Stop> {
    Err(Stop::Skip(why.to_string()))
}

/// Ends a trial: this should have been, that was.
pub fn mismatch<T>(expected: impl Display, seen: impl Display) -> Result<T, Stop> {
    let (expected, seen) = (expected.to_string(), seen.to_string());
    Err(Stop::Mismatch(Box::new(Mismatch { expected, seen, call: None })))
}

/// Ends a trial unless the condition holds.
pub fn ensure(condition: bool, expected: impl Display, seen: impl Display) -> TestResult {
    if condition { Ok(()) } else { mismatch(expected, seen) }
}

/// Ends a trial unless both are equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, seen: &T) -> TestResult {
    ensure(expected == seen, format!("{what}: {expected:?}"), format!("{seen:?}"))
}

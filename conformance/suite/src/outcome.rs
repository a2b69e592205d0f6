//! How a test case ends.

use std::fmt::Display;

/// The result of a test case; `Ok` if the plugin keeps the requirement.
pub type TestResult = Result<(), Stop>;

/// Why a test case stops early.
#[derive(Debug)]
pub enum Stop {
    /// The plugin does not keep the requirement.
    Mismatch(Box<Mismatch>),
    /// The test case cannot run here, for this reason.
    Skip(String),
    /// The suite or the machine failed.
    Broken(anyhow::Error),
}

/// The expected and the actual behaviour of a plugin.
#[derive(Debug, Clone)]
pub struct Mismatch {
    /// The expected behaviour.
    pub expected: String,
    /// The actual behaviour.
    pub seen: String,
    /// The call as a shell command; `None` if no single answer showed the mismatch.
    pub call: Option<String>,
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Broken(error.into())
    }
}

/// Skips the test case.
pub fn skip<T>(why: impl Display) -> Result<T, Stop> {
    Err(Stop::Skip(why.to_string()))
}

/// Ends the test case with a mismatch.
pub fn mismatch<T>(expected: impl Display, seen: impl Display) -> Result<T, Stop> {
    let (expected, seen) = (expected.to_string(), seen.to_string());
    Err(Stop::Mismatch(Box::new(Mismatch { expected, seen, call: None })))
}

/// Ends the test case with a mismatch unless the condition holds.
pub fn ensure(condition: bool, expected: impl Display, seen: impl Display) -> TestResult {
    if condition { Ok(()) } else { mismatch(expected, seen) }
}

/// Ends the test case with a mismatch unless both values are equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, seen: &T) -> TestResult {
    ensure(expected == seen, format!("{what}: {expected:?}"), format!("{seen:?}"))
}

//! The error that a plugin prints: a code, a message and details.

use std::fmt;

use serde_json::{Value, json};

use super::version::SpecVersion;

/// The code of an error object.
///
/// # References
/// CNI specification 1.1.0, section "Error".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// 1: the configuration's version is not supported.
    IncompatibleVersion,
    /// 2: a field of the configuration is not supported; the message holds its key and value.
    UnsupportedField,
    /// 4: an environment variable is missing or invalid; the message names it.
    InvalidEnvironment,
    /// 5: I/O failure.
    Io,
    /// 6: a document could not be decoded.
    Decode,
    /// 7: the configuration is invalid.
    InvalidConfig,
    /// 8: CNI_NETNS is the plugin's own namespace. The specification does not define this code; the reference
    /// uses it.
    InvalidNetns,
    /// 11: a transient condition; the runtime should retry later.
    TryAgainLater,
    /// 50: the plugin cannot serve ADD.
    NotAvailable,
    /// 999: any other failure, as in the reference.
    Internal,
    /// Any other code that a delegate reported.
    Other(u32),
}

impl Code {
    const KNOWN: [(Code, u32); 10] = [
        (Code::IncompatibleVersion, 1),
        (Code::UnsupportedField, 2),
        (Code::InvalidEnvironment, 4),
        (Code::Io, 5),
        (Code::Decode, 6),
        (Code::InvalidConfig, 7),
        (Code::InvalidNetns, 8),
        (Code::TryAgainLater, 11),
        (Code::NotAvailable, 50),
        (Code::Internal, 999),
    ];

    /// The number in the error object.
    pub fn number(self) -> u32 {
        match self {
            Code::Other(number) => number,
            known => Code::KNOWN.iter().find(|(code, _)| *code == known).map_or(999, |(_, number)| *number),
        }
    }
}

impl From<u32> for Code {
    fn from(number: u32) -> Self {
        Code::KNOWN.iter().find(|(_, n)| *n == number).map_or(Code::Other(number), |(code, _)| *code)
    }
}

/// What comes before the remedy in an error's details.
pub const REMEDY: &str = "remedy: ";

/// An error as a plugin reports it to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// The kind of failure.
    pub code: Code,
    /// One line: which step failed on which object, and why.
    pub msg: String,
    /// Additional information; may be empty.
    pub details: String,
}

impl CniError {
    /// An error without details.
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        CniError { code, msg: msg.into(), details: String::new() }
    }

    /// An error of code 999, for failures without a code in the specification.
    pub fn internal(msg: impl Into<String>) -> Self {
        CniError::new(Code::Internal, msg)
    }

    /// An error of code 7: the configuration is invalid.
    pub fn invalid_config(msg: impl Into<String>) -> Self {
        CniError::new(Code::InvalidConfig, msg)
    }

    /// The same error with details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// The same error with what an operator can do about its cause, at the end of the details. `ferrule doctor` shows it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl fmt::Display) -> Self {
        let gap = if self.details.is_empty() { "" } else { "; " };
        self.details = format!("{}{gap}{REMEDY}{remedy}", self.details);
        self
    }

    /// The error object in JSON. It contains `cniVersion`, which the specification requires and the reference
    /// omits.
    pub fn to_json(&self, version: SpecVersion) -> Value {
        let mut object =
            json!({ "cniVersion": version.as_str(), "code": self.code.number(), "msg": self.msg });
        if !self.details.is_empty() {
            object["details"] = Value::from(self.details.as_str());
        }
        object
    }
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if !self.details.is_empty() {
            write!(f, "; {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for CniError {}

/// Adds the failed step to an error of a lower layer.
pub trait Context<T> {
    /// Converts the error into a [`CniError`] of code 999 with the message `step: error`.
    fn context<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, CniError>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, CniError> {
        self.map_err(|error| CniError::internal(format!("{}: {error}", step().into())))
    }
}

/// The most messages of failures in one error. A container can make ten thousand steps fail.
const MAX_MESSAGES: usize = 20;

/// Collects the errors of DEL and GC, which continue after a failed step.
#[derive(Debug, Default)]
pub struct Failures(Vec<CniError>);

impl Failures {
    /// Records the error of a step; returns the value of a successful one.
    pub fn keep<T>(&mut self, outcome: Result<T, CniError>) -> Option<T> {
        outcome.map_err(|error| self.0.push(error)).ok()
    }

    /// `Ok` if no step failed. Otherwise an error with the code of the first failure and the messages of all, or of the first 20
    /// and the number of the others.
    pub fn into_result(self) -> Result<(), CniError> {
        let others = self.0.len().saturating_sub(MAX_MESSAGES);
        let mut errors = self.0.into_iter();
        let Some(mut first) = errors.next() else { return Ok(()) };
        for error in errors.take(MAX_MESSAGES - 1) {
            first.msg = format!("{}; {error}", first.msg);
        }
        if others > 0 {
            first.msg = format!("{}; and {others} more failures", first.msg);
        }
        Err(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_convert_to_numbers_and_back() {
        for (code, number) in Code::KNOWN {
            assert_eq!(code.number(), number);
            assert_eq!(Code::from(number), code);
        }
        assert_eq!(Code::from(123).number(), 123);
    }

    #[test]
    fn error_object_has_a_version_and_omits_empty_details() {
        let error = CniError::new(Code::TryAgainLater, "busy");
        let object = error.to_json(SpecVersion::V1_0_0);
        assert_eq!(object, json!({ "cniVersion": "1.0.0", "code": 11, "msg": "busy" }));
        let error = error.with_details("pid 1");
        let object = error.to_json(SpecVersion::V0_4_0);
        assert_eq!(object, json!({ "cniVersion": "0.4.0", "code": 11, "msg": "busy", "details": "pid 1" }));
        assert_eq!(error.with_remedy("kill 1").to_string(), "busy; pid 1; remedy: kill 1");
    }

    #[test]
    fn failures_are_joined_into_one_error() {
        let mut failures = Failures::default();
        assert_eq!(failures.keep(Ok(1)), Some(1));
        assert!(Failures::default().into_result().is_ok());
        failures.keep::<()>(Err(CniError::new(Code::Io, "one")));
        failures.keep::<()>(Err(CniError::internal("two")));
        assert_eq!(failures.into_result(), Err(CniError::new(Code::Io, "one; two")));
        let mut failures = Failures::default();
        for step in 0..50 {
            failures.keep::<()>(Err(CniError::internal(format!("step {step}"))));
        }
        let text = failures.into_result().unwrap_err().msg;
        assert!(text.starts_with("step 0; ") && text.ends_with("step 19; and 30 more failures"), "{text}");
    }
}

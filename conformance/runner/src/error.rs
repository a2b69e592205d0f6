//! Errors of the runner; a test can read a plugin's own code and message.

use std::fmt;
use std::process::ExitStatus;

use serde_json::Value;

use super::Output;

/// An error of the runner.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A plugin failed, or its answer cannot be read.
    Plugin(Box<PluginError>),
    /// Several errors of GC, which goes on after an error.
    Many(Vec<Error>),
    /// An error of the runner itself: configuration, cache, a missing plugin.
    Runner(anyhow::Error),
}

impl Error {
    pub(super) fn runner(message: impl fmt::Display) -> Error {
        Error::Runner(anyhow::anyhow!("{message}"))
    }

    /// The plugin's failure, if a plugin failed; of several the first.
    pub fn plugin(&self) -> Option<&PluginError> {
        match self {
            Error::Plugin(error) => Some(error),
            Error::Many(errors) => errors.iter().find_map(Error::plugin),
            Error::Runner(_) => None,
        }
    }

    /// The CNI error code, if a plugin reported one.
    pub fn code(&self) -> Option<u64> {
        match &self.plugin()?.failure {
            Failure::Reported { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A plugin call that did not succeed.
#[derive(Debug)]
pub struct PluginError {
    /// The plugin's `type`.
    pub plugin: String,
    /// The verb, such as `ADD`.
    pub verb: String,
    /// How the call failed.
    pub failure: Failure,
}

/// How a plugin call can fail.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The plugin printed an error object.
    Reported {
        /// The error code.
        code: u64,
        /// The short message.
        msg: String,
        /// The details, often empty.
        details: String,
        /// The object as printed.
        document: Value,
    },
    /// The plugin failed without an error object, or succeeded without a readable result.
    Unreadable {
        /// Why the answer cannot be read.
        why: String,
        /// How the process ended.
        status: ExitStatus,
        /// Standard output.
        stdout: String,
        /// Standard error.
        stderr: String,
    },
    /// The plugin could not be started, was killed at the time limit, or left its output streams open.
    NotRun(anyhow::Error),
}

impl Failure {
    /// Reads the answer of a plugin that has failed.
    pub(super) fn from_output(output: &Output) -> Failure {
        let document = match output.document() {
            Ok(document) => document,
            Err(why) => return Failure::unreadable(format!("{why:#}"), output),
        };
        let Some(members) = document.as_object() else {
            return Failure::unreadable("the error is not a JSON object", output);
        };
        let text = |key| members.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Failure::Reported {
            code: members.get("code").and_then(Value::as_u64).unwrap_or_default(),
            msg: text("msg"),
            details: text("details"),
            document,
        }
    }

    pub(super) fn unreadable(why: impl Into<String>, output: &Output) -> Failure {
        Failure::Unreadable {
            why: why.into(),
            status: output.status,
            stdout: output.stdout_text(),
            stderr: output.stderr_text(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Plugin(error) => error.fmt(f),
            Error::Many(errors) => {
                for (position, error) in errors.iter().enumerate() {
                    write!(f, "{}{error}", if position > 0 { "\n" } else { "" })?;
                }
                Ok(())
            }
            Error::Runner(error) => write!(f, "{error:#}"),
        }
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin {}: {} failed: {}", self.plugin, self.verb, self.failure)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Reported { code, msg, details, .. } if details.is_empty() => {
                write!(f, "{msg} (code {code})")
            }
            Failure::Reported { code, msg, details, .. } => write!(f, "{msg}; {details} (code {code})"),
            Failure::Unreadable { why, status, stdout, stderr } => {
                write!(f, "{why} ({status}, stdout {stdout:?}, stderr {stderr:?})")
            }
            Failure::NotRun(error) => write!(f, "{error:#}"),
        }
    }
}

impl std::error::Error for Error {}
impl std::error::Error for PluginError {}

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Error {
        Error::Runner(error)
    }
}

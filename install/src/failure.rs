//! Why a command ended.

use std::fmt::Display;

use nix::sys::signal::Signal;

/// An error that ends the command, with the exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// 1: failed; 2: wrong usage; 128 + N: ended by signal N.
    pub status: u8,
    /// What failed. `None` if it has been printed, or for a signal.
    pub message: Option<String>,
}

impl Failure {
    /// A step failed.
    pub fn new(message: impl Display) -> Self {
        Failure { status: 1, message: Some(message.to_string()) }
    }

    /// The user asked for something that does not exist.
    pub fn usage(message: impl Display) -> Self {
        Failure { status: 2, message: Some(message.to_string()) }
    }

    /// A signal ended the command. The exit status is that of a shell.
    pub fn signal(signal: Signal) -> Self {
        Failure { status: 128 + signal as u8, message: None }
    }
}

/// Adds the failed step to an error.
pub trait Step<T> {
    /// The error as a [`Failure`] that begins with `what`, such as "cannot make /opt/cni/bin".
    ///
    /// # Errors
    /// This error.
    fn step(self, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: Display> Step<T> for Result<T, E> {
    fn step(self, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format!("{}: {error}", what())))
    }
}

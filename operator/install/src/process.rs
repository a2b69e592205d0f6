//! Runs a program until it ends, or until a time limit or a signal ends it.

use std::process::Command;
use std::time::Duration;

use cni_common::captured;
pub use cni_common::captured::Ended;

use crate::signals::{Signals, Stopped};

/// Why there is no result.
pub type Trouble = captured::Trouble<Stopped>;

/// Runs a program, in an environment with only PATH and the variables of `command`.
///
/// # Errors
/// See [`captured::Trouble`]. A program that fails is not an error.
pub fn run(command: &mut Command, input: &str, limit: Duration, signals: &Signals) -> Result<Ended, Trouble> {
    command.envs(std::env::vars_os().filter(|(variable, _)| variable == "PATH"));
    captured::run(command, input, limit, || signals.check())
}

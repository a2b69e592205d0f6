//! Runs a program with a time limit.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use cni_common::captured::Captured;

use crate::failure::Failure;
use crate::signals::Signals;

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Why there is no result.
#[derive(Debug)]
pub enum Trouble {
    /// The program could not be started.
    Start(io::Error),
    /// It was still running at the time limit, and was killed.
    TookTooLong,
    /// A signal has asked for the end; the program was killed.
    Stopped(Failure),
}

/// Runs a program, in an environment with only PATH and the variables of `command`.
///
/// # Errors
/// See [`Trouble`]. A program that fails is not an error.
pub fn run(command: &mut Command, input: &str, limit: Duration, signals: &Signals) -> Result<Ended, Trouble> {
    for (variable, value) in std::env::vars_os().filter(|(variable, _)| variable == "PATH") {
        command.env(variable, value);
    }
    let end = Instant::now() + limit;
    let mut program = Captured::start(command, input).map_err(Trouble::Start)?;
    let status = match wait(&mut program.child, end, signals) {
        Ok(status) => status,
        Err(trouble) => {
            let _ = program.child.kill().and_then(|()| program.child.wait());
            return Err(trouble);
        }
    };
    let (stdout, stderr) = (program.stdout(), program.stderr());
    Ok(Ended { status, stdout: stdout.map_err(Trouble::Start)?, stderr: stderr.map_err(Trouble::Start)? })
}

fn wait(child: &mut Child, end: Instant, signals: &Signals) -> Result<ExitStatus, Trouble> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        signals.wait(left).map_err(Trouble::Stopped)?;
        match child.try_wait().map_err(Trouble::Start)? {
            Some(status) => return Ok(status),
            None if left.is_zero() => return Err(Trouble::TookTooLong),
            None => {}
        }
    }
}

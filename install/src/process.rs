//! Runs a program with a time limit. Needs no shell, no /tmp and no thread.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::failure::Failure;
use crate::signals::Signals;

/// How much output is read, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;

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

/// Runs a program, in an environment with only PATH and the variables of `command`. Input and output are
/// anonymous files: a pipe could fill up.
///
/// # Errors
/// See [`Trouble`]. A program that fails is not an error.
pub fn run(command: &mut Command, input: &str, limit: Duration, signals: &Signals) -> Result<Ended, Trouble> {
    let [mut stdin, mut stdout, mut stderr] = [anonymous_file()?, anonymous_file()?, anonymous_file()?];
    stdin.write_all(input.as_bytes()).and_then(|()| stdin.rewind()).map_err(Trouble::Start)?;
    for (variable, value) in std::env::vars_os().filter(|(variable, _)| variable == "PATH") {
        command.env(variable, value);
    }
    let share = |file: &File| file.try_clone().map_err(Trouble::Start);
    command.stdin(share(&stdin)?).stdout(share(&stdout)?).stderr(share(&stderr)?);
    let end = Instant::now() + limit;
    let mut child = command.spawn().map_err(Trouble::Start)?;
    let status = match wait(&mut child, end, signals) {
        Ok(status) => status,
        Err(trouble) => {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(trouble);
        }
    };
    Ok(Ended { status, stdout: read(&mut stdout)?, stderr: read(&mut stderr)? })
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

fn anonymous_file() -> Result<File, Trouble> {
    // A node may refuse files that could be executed. Kernels before 6.3 do not know the flag.
    let file = match memfd_create("ferrule", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("ferrule", MemfdFlags::CLOEXEC),
        outcome => outcome,
    };
    file.map(File::from).map_err(|error| Trouble::Start(error.into()))
}

fn read(file: &mut File) -> Result<String, Trouble> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.take(MAX_OUTPUT).read_to_end(&mut bytes)).map_err(Trouble::Start)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

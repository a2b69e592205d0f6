//! Runs a program with its input and output in memory, and with a time limit. Needs no pipe, which could fill up, no /tmp and no
//! thread.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

/// How much is read of what a program writes to one stream, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// The time between two looks at a running program.
const PAUSE: Duration = Duration::from_micros(500);

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit status.
    pub status: ExitStatus,
    /// Its standard output, at most 1 MiB.
    pub stdout: String,
    /// As `stdout`, for standard error.
    pub stderr: String,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Trouble<S> {
    /// The program could not be started, or its output not be read.
    #[error(transparent)]
    Start(#[from] io::Error),
    /// It was still running at this time limit, and was killed.
    #[error("still running after {} seconds", .0.as_secs())]
    TookTooLong(Duration),
    /// The caller does not wait any more; the program was killed.
    #[error(transparent)]
    Stopped(S),
}

/// Runs a program, and ends it if `check` fails. A program that is killed takes those along that it has started.
///
/// # Errors
/// See [`Trouble`]. A program that fails is not an error.
pub fn run<S>(
    command: &mut Command,
    input: &str,
    limit: Duration,
    check: impl FnMut() -> Result<(), S>,
) -> Result<Ended, Trouble<S>> {
    let (mut stdin, stdout, stderr) = (anonymous_file()?, anonymous_file()?, anonymous_file()?);
    stdin.write_all(input.as_bytes())?;
    stdin.rewind()?;
    command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
    let mut child = command.spawn()?;
    let status = wait(&mut child, limit, check).inspect_err(|_| {
        if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    })?;
    Ok(Ended { status, stdout: text(stdout)?, stderr: text(stderr)? })
}

fn wait<S>(
    child: &mut Child,
    limit: Duration,
    mut check: impl FnMut() -> Result<(), S>,
) -> Result<ExitStatus, Trouble<S>> {
    let end = Instant::now() + limit;
    loop {
        check().map_err(Trouble::Stopped)?;
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            return Err(Trouble::TookTooLong(limit));
        }
        thread::sleep(PAUSE);
    }
}

/// A node may refuse files that could be executed. Kernels before 6.3 do not know the flag.
fn anonymous_file() -> io::Result<File> {
    let file = match memfd_create("ferrule", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("ferrule", MemfdFlags::CLOEXEC),
        outcome => outcome,
    };
    Ok(file?.into())
}

fn text(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MAX_OUTPUT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

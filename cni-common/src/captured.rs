//! A program that runs with its input and output in memory. Needs no pipe, which could fill up, no /tmp and no thread.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::process::{Child, Command};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

/// How much is read of what a program writes to one stream, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// A running program and its output.
#[derive(Debug)]
pub struct Captured {
    /// The process. Drop neither kills it nor waits for it.
    pub child: Child,
    stdout: File,
    stderr: File,
}

impl Captured {
    /// Starts a program with this input.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command, input: &str) -> io::Result<Captured> {
        let (mut stdin, stdout, stderr) = (anonymous_file()?, anonymous_file()?, anonymous_file()?);
        stdin.write_all(input.as_bytes())?;
        stdin.rewind()?;
        let child = command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).spawn()?;
        Ok(Captured { child, stdout, stderr })
    }

    /// What the program has written to standard output, at most 1 MiB. Call this after the end of the program.
    ///
    /// # Errors
    /// The kernel refuses to read.
    pub fn stdout(&mut self) -> io::Result<String> {
        text(&mut self.stdout)
    }

    /// As [`Captured::stdout`], for standard error.
    ///
    /// # Errors
    /// The kernel refuses to read.
    pub fn stderr(&mut self) -> io::Result<String> {
        text(&mut self.stderr)
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

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MAX_OUTPUT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

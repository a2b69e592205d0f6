//! The process of a daemon, and of its commands for administrators.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use cni_common::line::Text;
use tokio::runtime::Builder;

/// The exit status after a wrong argument or configuration (EX_CONFIG of sysexits.h): a restart cannot help.
const BAD_CONFIG: u8 = 78;

/// Why the program fails. Any error becomes one, with status 1.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    text: String,
}

impl Failure {
    /// A wrong argument or configuration.
    pub fn bad_config(error: impl Display) -> Failure {
        Failure { status: BAD_CONFIG, ..error.into() }
    }
}

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { status: 1, text: format!("{error:#}") }
    }
}

/// Reads the arguments and calls `main` with them. A failure is one line on standard error.
pub fn run<A: Parser>(main: impl FnOnce(A) -> Result<ExitCode, Failure>) -> ExitCode {
    match A::try_parse() {
        Ok(arguments) => main(arguments).unwrap_or_else(|failure| {
            crate::log!("{}: {}", A::command().get_name(), failure.text);
            ExitCode::from(failure.status)
        }),
        Err(message) => {
            let _ = message.print();
            ExitCode::from(if message.use_stderr() { BAD_CONFIG } else { 0 })
        }
    }
}

/// Runs the work on this thread alone.
///
/// # Errors
/// Those of the work, or the runtime cannot start.
pub fn block_on<T, E: From<io::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}

/// A panic in a task would end one part and nothing else. So it ends the process, which the kubelet or the service manager starts again.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

/// Writes to standard output.
pub fn print(text: &Text) -> ExitCode {
    // A reader such as `head` may close the pipe.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Writes the man pages and completions of a release into a folder.
///
/// # Errors
/// A file cannot be written.
pub fn generate<A: CommandFactory>(dir: &Path) -> io::Result<ExitCode> {
    clap_mangen::generate_to(A::command(), dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut command = A::command();
        let name = command.get_name().to_owned();
        clap_complete::generate_to(shell, &mut command, name, dir)?;
    }
    Ok(ExitCode::SUCCESS)
}

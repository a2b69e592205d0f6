//! The program `ferrule-node`.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use clap_complete::Shell;
use cni_common::line::{Line, Text};
use ferrule_node::arguments::{Arguments, Command};
use ferrule_node::{blocks, cleanup, daemon, housekeeping, left_overs, proof, status};

/// The exit status after a wrong argument (EX_CONFIG of sysexits.h): a restart cannot help.
const BAD_CONFIG: u8 = 78;

fn main() -> ExitCode {
    abort_on_panic();
    let Arguments { command, options, generate } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(message) => {
            let _ = message.print();
            return ExitCode::from(if message.use_stderr() { BAD_CONFIG } else { 0 });
        }
    };
    if let Some(dir) = generate {
        return generate_into(&dir).map_or_else(|error| fail(1, &error.into()), |()| ExitCode::SUCCESS);
    }
    if let Some(Command::Child { parent, program, words }) = &command {
        return housekeeping::become_child(*parent, program, words)
            .map_or_else(|error| fail(1, &error.into()), |never| match never {});
    }
    // It enters the node's mounts, which only a process with one thread can.
    if command == Some(Command::Endpoint) {
        return proof::serve().map_or_else(|error| fail(1, &error), |()| ExitCode::SUCCESS);
    }
    if let Err(error) = options.check() {
        return fail(BAD_CONFIG, &error);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &error.into()),
    };
    let outcome = match command {
        None | Some(Command::Child { .. } | Command::Endpoint) => {
            runtime.block_on(daemon::run(options)).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Blocks(blocks)) => {
            runtime.block_on(blocks::run(options, blocks)).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Status { json, no_probe }) => {
            runtime.block_on(status::print(&options, json, !no_probe)).map(|(text, is_ready)| {
                print(&text);
                if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            })
        }
        Some(Command::Cleanup { left_overs, dry_run }) => {
            let done = match left_overs {
                Some(origin) => left_overs::run(&options, origin, dry_run),
                None => cleanup::run(&options),
            };
            done.map(|text| {
                print(&Text::lines(text));
                ExitCode::SUCCESS
            })
        }
    };
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| fail(1, &error))
}

/// Writes the man pages and completions.
fn generate_into(dir: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Arguments::command(), "ferrule-node", dir)?;
    }
    Ok(())
}

/// A panic in a task would end one part and nothing else. So it ends the process, which the kubelet or the service manager
/// starts again. Routes and devices stay.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

fn print(text: &Text) {
    // A reader such as `head` may close the pipe.
    let _ = io::stdout().write_all(text.as_bytes());
}

fn fail(status: u8, error: &anyhow::Error) -> ExitCode {
    // `eprintln!` panics if it cannot write.
    let _ = writeln!(io::stderr(), "ferrule-node: {}", Line::new(format_args!("{error:#}")));
    ExitCode::from(status)
}

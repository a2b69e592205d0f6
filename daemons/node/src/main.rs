//! The program `ferrule-node`.

use std::process::ExitCode;

use cni_common::line::Text;
use ferrule_daemon::program::{self, Failure};
use ferrule_node::arguments::{Arguments, Command};
use ferrule_node::{blocks, cleanup, daemon, housekeeping, left_overs, proof, status};

fn main() -> ExitCode {
    program::abort_on_panic();
    program::run(run)
}

fn run(Arguments { command, options, generate }: Arguments) -> Result<ExitCode, Failure> {
    if let Some(dir) = generate {
        return Ok(program::generate::<Arguments>(&dir)?);
    }
    let check = || options.check().map_err(Failure::bad_config);
    match command {
        None => {
            check()?;
            program::block_on(daemon::run(options)).map(|()| ExitCode::SUCCESS).map_err(Failure::from)
        }
        Some(Command::Blocks(blocks)) => {
            check()?;
            program::block_on(blocks::run(options, blocks)).map(|()| ExitCode::SUCCESS).map_err(Failure::from)
        }
        Some(Command::Import(import)) => {
            check()?;
            let (text, is_clean) = program::block_on(blocks::import::run(options, &import))?;
            program::print(&Text::lines(text));
            Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(Command::Status { json, no_probe }) => {
            check()?;
            let (text, is_ready) = program::block_on(status::print(&options, json, !no_probe))?;
            program::print(&text);
            Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(Command::Cleanup { left_overs, dry_run }) => {
            check()?;
            let text = match left_overs {
                Some(origin) => left_overs::run(&options, origin, dry_run)?,
                None => cleanup::run(&options)?,
            };
            Ok(program::print(&Text::lines(text)))
        }
        // It enters the node's mounts, which only a process with one thread can.
        Some(Command::Endpoint) => proof::serve().map(|()| ExitCode::SUCCESS).map_err(Failure::from),
        Some(Command::Child { parent, program, words }) => {
            match housekeeping::become_child(parent, &program, &words)? {}
        }
    }
}

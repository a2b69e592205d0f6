//! The command line of operators.

mod arguments;
mod operator;
mod policy;
mod support;
mod watch;

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Error, Result};
use clap::{CommandFactory, Parser as _};
use clap_complete::Shell;
use cni_common::line::Text;
use cni_common::plugin::Plugin;
use ferrule_install::console::{note, say};
use ferrule_install::{Back, Condition, Outcome, Stopped, TOOL, fingerprint::Fingerprint};
use ferrule_kernel::file::read_named_text;
use ferrule_kit::fold::{fold, unfold};

use self::arguments::{Chain, Command};

/// Runs the command that the arguments name.
pub(crate) fn main(plugins: &'static [&'static Plugin]) -> ExitCode {
    ExitCode::from(run(plugins, &Command::parse()).unwrap_or_else(failed))
}

/// Prints an error. Returns the exit status: 1, 2 after wrong usage, and that of a shell after a signal.
fn failed(error: Error) -> u8 {
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        let _ = usage.print();
        return 2;
    }
    match error.downcast_ref() {
        Some(Stopped(signal)) => 128 + signal,
        None => {
            note(format_args!("{error:#}"));
            1
        }
    }
}

/// Returns the exit status.
fn run(plugins: &'static [&'static Plugin], command: &Command) -> Result<u8> {
    let names: Vec<&'static str> = plugins.iter().map(|plugin| plugin.name).collect();
    let outcome = match command {
        Command::Install(options) => ferrule_install::install(options, &names)?,
        Command::Rollback(options) => ferrule_install::restore(options, Back::Last)?,
        Command::Uninstall(options) => ferrule_install::restore(options, Back::Original)?,
        Command::Status(options) => {
            let (text, condition) = ferrule_install::status(options, &names)?;
            say(Text::lines(text));
            return Ok(match condition {
                Condition::Sound => 0,
                Condition::Disturbed => 3,
                Condition::NotInstalled => 4,
            });
        }
        Command::Inspect(arguments) => return operator::inspect(arguments),
        Command::Gc(arguments) => return operator::gc(arguments),
        Command::Repair(arguments) => return operator::repair(arguments, plugins),
        Command::Check(arguments) => return operator::check(arguments),
        Command::Shape(arguments) => return operator::shape(arguments),
        Command::Doctor(arguments) => return operator::doctor(arguments, &names),
        Command::Test(arguments) => return support::test(arguments),
        Command::Report(arguments) => return support::report(arguments, &names),
        Command::Log(arguments) => return operator::log(arguments),
        Command::Metrics(arguments) => return operator::metrics(arguments),
        Command::Chain(arguments) => return convert(arguments),
        Command::Policy(command) => return policy::run(command),
        Command::Plugins => {
            for plugin in plugins {
                let versions: Vec<_> = plugin.spec_versions.iter().map(|version| version.as_str()).collect();
                say(format_args!("{:<11}  {}", plugin.name, versions.join(" ")));
            }
            return Ok(0);
        }
        Command::Version => {
            say(format_args!("{TOOL} v{}", env!("CARGO_PKG_VERSION")));
            if let Ok(program) = fs::read("/proc/self/exe") {
                say(format_args!("sha256 {}", Fingerprint::of_content(program)));
            }
            return Ok(0);
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Command::command(), TOOL, &mut script);
            say(Text::lines(String::from_utf8_lossy(&script)));
            return Ok(0);
        }
        Command::Generate { dir } => {
            generate(dir)?;
            return Ok(0);
        }
    };
    Ok(match outcome {
        Outcome::Done => 0,
        Outcome::Partly => 3,
    })
}

/// Prints a conflist in the other form.
fn convert(arguments: &Chain) -> Result<u8> {
    let (file, form): (_, fn(&_) -> _) = match (&arguments.fold, &arguments.unfold) {
        (Some(file), _) => (file, fold),
        (None, Some(file)) => (file, unfold),
        (None, None) => return Ok(2),
    };
    let of_file = || file.display().to_string();
    let text = read_named_text(file).with_context(of_file)?;
    let list = serde_json::from_str(&text).with_context(of_file)?;
    let converted = form(&list).map_err(Error::msg).with_context(of_file)?;
    say(Text::json(serde_json::to_string_pretty(&converted)?));
    Ok(0)
}

/// Writes the man pages and completions.
fn generate(dir: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Command::command(), dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Command::command(), TOOL, dir)?;
    }
    Ok(())
}

//! The command line: `ferrule install | rollback | uninstall | status | inspect | gc | check | plugins | version`.

mod arguments;
mod help;
mod operator;

use std::process::ExitCode;

use cni_common::plugin::Plugin;
use ferrule_install::console::{note, say};
use ferrule_install::{Condition, Contents, Failure, Outcome, TOOL, fingerprint::Fingerprint};

use self::arguments::{Arguments, Command};

/// Runs the command that the arguments name.
pub(crate) fn main(plugins: &[&dyn Plugin]) -> ExitCode {
    let outcome =
        operator::run().unwrap_or_else(|| Arguments::parse().and_then(|arguments| run(plugins, &arguments)));
    match outcome {
        Ok(code) => code,
        Err(Failure { status, message }) => {
            if let Some(message) = message {
                let help = if status == 2 { "; see ferrule --help" } else { "" };
                note(format_args!("{message}{help}"));
            }
            ExitCode::from(status)
        }
    }
}

fn run(plugins: &[&dyn Plugin], arguments: &Arguments) -> Result<ExitCode, Failure> {
    let names: Vec<&str> = plugins.iter().map(|plugin| plugin.name()).collect();
    let contents = Contents { plugins: &names };
    let request = &arguments.request;
    let outcome = match arguments.command {
        Command::Help(topic) => {
            say(help::text(topic).trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        Command::Plugins => {
            list(plugins);
            return Ok(ExitCode::SUCCESS);
        }
        Command::Version => {
            print_version();
            return Ok(ExitCode::SUCCESS);
        }
        Command::Status => {
            let (text, condition) = ferrule_install::status(request, contents, arguments.as_json)?;
            say(text);
            return Ok(ExitCode::from(match condition {
                Condition::Sound => 0,
                Condition::Disturbed => 3,
                Condition::NotInstalled => 4,
            }));
        }
        Command::Install => ferrule_install::install(request, contents)?,
        Command::Rollback => ferrule_install::roll_back(request)?,
        Command::Uninstall => ferrule_install::uninstall(request)?,
    };
    Ok(ExitCode::from(match outcome {
        Outcome::Done => 0,
        Outcome::Partly => 3,
    }))
}

/// One line for each plugin: its name and the CNI versions that it supports.
fn list(plugins: &[&dyn Plugin]) {
    let width = plugins.iter().map(|plugin| plugin.name().len()).max().unwrap_or(0);
    for plugin in plugins {
        let versions: Vec<&str> = plugin.spec_versions().iter().map(|version| version.as_str()).collect();
        say(format_args!("{:<width$}  {}", plugin.name(), versions.join(" ")));
    }
}

/// The version, and the SHA-256 of the program, as in the manifest of an installation.
fn print_version() {
    say(format_args!("{TOOL} v{}", env!("CARGO_PKG_VERSION")));
    if let Ok(print) = std::fs::File::open("/proc/self/exe").and_then(Fingerprint::of_file) {
        say(format_args!("sha256 {print}"));
    }
}

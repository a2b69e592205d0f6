//! The commands for the log of calls: `ferrule log` and `metrics`.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use ferrule_inspect::calls::export::export;
use ferrule_inspect::calls::read::{Selection, calls, log_file};
use ferrule_inspect::calls::table::table;
use ferrule_inspect::terminal::style;
use ferrule_install::Failure;
use ferrule_install::console::say;
use lexopt::{Arg, Parser, ValueExt as _};

use super::help;

type Work = fn(&Arguments) -> Result<(), Failure>;

/// Runs one of these commands; `None` if the first argument names another one.
pub(super) fn run() -> Option<Result<ExitCode, Failure>> {
    let command = env::args_os().nth(1)?;
    let (help, work): (&str, Work) = match command.to_str()? {
        "log" => (help::LOG, log),
        "metrics" => (help::METRICS, metrics),
        _ => return None,
    };
    let mut parser = Parser::from_env();
    // The command itself.
    let _ = parser.next();
    Some(match Arguments::read(command.to_str()?, parser) {
        Ok(Some(arguments)) => work(&arguments).map(|()| ExitCode::SUCCESS),
        Ok(None) => {
            say(help.trim_end());
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => Err(failure),
    })
}

#[derive(Debug, Default)]
struct Arguments {
    selection: Selection,
    file: Option<PathBuf>,
    output: Option<PathBuf>,
    as_json: bool,
}

impl Arguments {
    /// `None` if the user asks for help.
    fn read(command: &str, mut parser: Parser) -> Result<Option<Self>, Failure> {
        let mut arguments = Arguments::default();
        while let Some(argument) = parser.next().map_err(Failure::usage)? {
            let option = match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long(option) => option.to_owned(),
                other => return Err(Failure::usage(other.unexpected())),
            };
            let mut value = || parser.value().map_err(Failure::usage);
            match (command, option.as_str()) {
                ("log", "last" | "slowest") => {
                    arguments.selection.slowest |= option == "slowest";
                    arguments.selection.most = number(&option, value()?)?;
                }
                ("log", "failed") => arguments.selection.failed = true,
                ("log", "container") => {
                    arguments.selection.container = Some(value()?.string().map_err(Failure::usage)?);
                }
                ("log", "json") => arguments.as_json = true,
                (_, "file") => arguments.file = Some(value()?.into()),
                ("metrics", "output") => arguments.output = Some(value()?.into()),
                _ => return Err(Failure::usage(format!("unknown option '--{option}' of {command}"))),
            }
        }
        Ok(Some(arguments))
    }
}

fn number(option: &str, value: OsString) -> Result<usize, Failure> {
    let number = value.to_str().and_then(|text| text.parse().ok()).filter(|number| *number > 0);
    number.ok_or_else(|| {
        Failure::usage(format!("--{option} wants a number of calls, not '{}'", value.display()))
    })
}

fn log(arguments: &Arguments) -> Result<(), Failure> {
    let path = log_file(arguments.file.as_deref()).map_err(Failure::new)?;
    let chosen = arguments.selection.of(calls(&path).map_err(Failure::new)?);
    match arguments.as_json {
        true => chosen.iter().for_each(|call| say(&call.json)),
        false => say(table(&chosen, style()).trim_end()),
    }
    Ok(())
}

fn metrics(arguments: &Arguments) -> Result<(), Failure> {
    let path = log_file(arguments.file.as_deref()).map_err(Failure::new)?;
    let text = export(&path, arguments.output.as_deref()).map_err(Failure::new)?;
    if arguments.output.is_none() {
        say(text.trim_end());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Option<Arguments>, Failure> {
        let command = words.split(' ').next().unwrap();
        Arguments::read(command, Parser::from_iter(words.split(' ')))
    }

    #[test]
    fn options() {
        let log = read("log --failed --slowest 5 --container=shop/web --file /l --json").unwrap().unwrap();
        let container = Some("shop/web".to_owned());
        assert_eq!(log.selection, Selection { most: 5, slowest: true, failed: true, container });
        assert!(log.as_json && log.file == Some(PathBuf::from("/l")));
        assert_eq!(read("metrics --output /m").unwrap().unwrap().output, Some(PathBuf::from("/m")));
        assert!(read("log -h").unwrap().is_none());
    }

    #[test]
    fn wrong_usage() {
        for words in [
            "log --last",
            "log --slowest 0",
            "log --last x",
            "log --output /m",
            "log 7",
            "log -x",
            "metrics --failed",
        ] {
            assert_eq!(read(words).unwrap_err().status, 2, "{words}");
        }
    }
}

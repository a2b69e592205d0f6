//! Arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ferrule_install::{Failure, HostPorts, Request};
use lexopt::{Arg, Parser, ValueExt as _};

use super::help;

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Install,
    Rollback,
    Uninstall,
    Status,
    Plugins,
    Version,
    /// Help on a command; `None` for all.
    Help(Option<&'static str>),
}

/// The commands, by name.
const COMMANDS: [(&str, Command); 6] = [
    ("install", Command::Install),
    ("rollback", Command::Rollback),
    ("uninstall", Command::Uninstall),
    ("status", Command::Status),
    ("plugins", Command::Plugins),
    ("version", Command::Version),
];

/// What the user asked for.
#[derive(Debug)]
pub(super) struct Arguments {
    pub(super) command: Command,
    pub(super) request: Request,
    pub(super) as_json: bool,
}

impl Arguments {
    /// Reads the arguments of this process.
    pub(super) fn parse() -> Result<Self, Failure> {
        Self::from(Parser::from_env())
    }

    fn from(mut parser: Parser) -> Result<Self, Failure> {
        let mut arguments =
            Arguments { command: Command::Help(None), request: Request::default(), as_json: false };
        let Some((name, command)) = command(&mut parser)? else { return Ok(arguments) };
        arguments.command = command;
        while let Some(argument) = parser.next().map_err(Failure::usage)? {
            let option = match argument {
                Arg::Long("help") | Arg::Short('h') => {
                    arguments.command = Command::Help(Some(name));
                    return Ok(arguments);
                }
                Arg::Long(option) => option.to_owned(),
                other => return Err(unexpected(&other)),
            };
            if !belongs(command, &option) {
                return Err(match belongs_anywhere(&option) {
                    true => Failure::usage(format!("--{option} does not belong to {name}")),
                    false => Failure::usage(format!("unknown option '--{option}'")),
                });
            }
            arguments.read(&option, &mut parser)?;
        }
        Ok(arguments)
    }

    fn read(&mut self, option: &str, parser: &mut Parser) -> Result<(), Failure> {
        let request = &mut self.request;
        match option {
            "dry-run" => request.dry_run = true,
            "force" => request.force = true,
            "json" => self.as_json = true,
            _ => {
                let value = parser.value().ok().filter(|value| !value.is_empty());
                let value = value.ok_or_else(|| Failure::usage(format!("--{option} needs a value")))?;
                match option {
                    "bin-dir" => request.bin_dir = value.into(),
                    "from" => request.from = Some(value.into()),
                    "conf-dir" => request.conf_dir = value.into(),
                    "data-dir" => request.data_dirs.push(PathBuf::from(value)),
                    "plugins" => request.plugins = Some(text(value)?),
                    "wait" => request.wait = seconds(value)?,
                    _ => request.host_ports = host_ports(value)?,
                }
            }
        }
        Ok(())
    }
}

/// Reads the first argument. `None` for help on everything.
fn command(parser: &mut Parser) -> Result<Option<(&'static str, Command)>, Failure> {
    let find = |word: &OsString| COMMANDS.into_iter().find(|(name, _)| word == name);
    match parser.next().map_err(Failure::usage)? {
        None => Err(Failure::usage("a command is missing")),
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(None),
        Some(Arg::Long("version") | Arg::Short('V')) => Ok(Some(("version", Command::Version))),
        Some(Arg::Value(word)) if word == "help" => match parser.next().map_err(Failure::usage)? {
            None => Ok(None),
            Some(Arg::Value(word)) => {
                let name = word.to_str().and_then(help::topic).ok_or_else(|| unknown(&word))?;
                Ok(Some((name, Command::Help(Some(name)))))
            }
            Some(other) => Err(unexpected(&other)),
        },
        Some(Arg::Value(word)) => find(&word).ok_or_else(|| unknown(&word)).map(Some),
        Some(other) => Err(unexpected(&other)),
    }
}

/// The options of each command.
fn belongs(command: Command, option: &str) -> bool {
    let goes_back = matches!(command, Command::Rollback | Command::Uninstall);
    let changes = goes_back || command == Command::Install;
    match option {
        "bin-dir" => changes || command == Command::Status,
        "plugins" | "dry-run" | "wait" => changes,
        "from" => command == Command::Install,
        "force" | "host-ports" | "data-dir" | "conf-dir" => goes_back,
        "json" => command == Command::Status,
        _ => false,
    }
}

fn belongs_anywhere(option: &str) -> bool {
    COMMANDS.iter().any(|(_, command)| belongs(*command, option))
}

fn unknown(word: &OsString) -> Failure {
    Failure::usage(format!("unknown command '{}'", word.display()))
}

fn unexpected(argument: &Arg<'_>) -> Failure {
    Failure::usage(match argument {
        Arg::Short(letter) => format!("unknown option '-{letter}'"),
        Arg::Long(option) => format!("unknown option '--{option}'"),
        Arg::Value(word) => format!("unexpected argument '{}'", word.display()),
    })
}

fn text(value: OsString) -> Result<String, Failure> {
    value.string().map_err(Failure::usage)
}

fn seconds(value: OsString) -> Result<Duration, Failure> {
    let value = text(value)?;
    let seconds = value.parse().map(Duration::from_secs);
    seconds.map_err(|_| Failure::usage(format!("--wait wants a number of seconds, not '{value}'")))
}

fn host_ports(value: OsString) -> Result<HostPorts, Failure> {
    HostPorts::parse(&text(value)?)
        .ok_or_else(|| Failure::usage("--host-ports wants iptables, nftables or keep"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Arguments, Failure> {
        Arguments::from(Parser::from_iter(["ferrule"].into_iter().chain(words.split(' '))))
    }

    #[test]
    fn commands_and_options() {
        let install =
            parse("install --bin-dir=/b --from /f --plugins bridge,portmap --wait 5 --dry-run").unwrap();
        assert_eq!(install.command, Command::Install);
        assert_eq!(install.request.bin_dir, PathBuf::from("/b"));
        assert_eq!(install.request.from, Some(PathBuf::from("/f")));
        assert_eq!(install.request.plugins.as_deref(), Some("bridge,portmap"));
        assert!(install.request.dry_run && install.request.wait == Duration::from_secs(5));
        let out = parse("uninstall --force --host-ports keep --data-dir /d --data-dir=/e").unwrap();
        assert!(out.request.force && out.request.host_ports == HostPorts::Keep);
        assert_eq!(out.request.data_dirs.len(), 2);
        assert!(parse("status --json").unwrap().as_json);
        for (words, command) in [
            ("--help", Command::Help(None)),
            ("help", Command::Help(None)),
            ("help status", Command::Help(Some("status"))),
            ("help doctor", Command::Help(Some("doctor"))),
            ("rollback -h", Command::Help(Some("rollback"))),
            ("--version", Command::Version),
            ("-V", Command::Version),
        ] {
            assert_eq!(parse(words).unwrap().command, command, "{words}");
        }
    }

    #[test]
    fn wrong_usage() {
        for (words, why) in [
            ("bogus", "unknown command 'bogus'"),
            ("help bogus", "unknown command 'bogus'"),
            ("--bogus", "unknown option '--bogus'"),
            ("install --bogus", "unknown option '--bogus'"),
            ("install bridge", "unexpected argument 'bridge'"),
            ("install --from", "--from needs a value"),
            ("install --from=", "--from needs a value"),
            ("install --wait soon", "--wait wants a number of seconds, not 'soon'"),
            ("install --host-ports keep", "--host-ports does not belong to install"),
            ("uninstall --from /f", "--from does not belong to uninstall"),
            ("uninstall --host-ports ipvs", "--host-ports wants iptables, nftables or keep"),
            ("status --force", "--force does not belong to status"),
            ("version --json", "--json does not belong to version"),
        ] {
            let failure = parse(words).unwrap_err();
            assert_eq!((failure.status, failure.message.as_deref()), (2, Some(why)), "{words}");
        }
    }
}

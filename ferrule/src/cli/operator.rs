//! The commands for operators: `ferrule inspect`, `gc`, `check` and `doctor`.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::fs::chroot;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cni_common::plugin::Plugin;
use ferrule_inspect::doctor::{self, Places, Severity};
use ferrule_inspect::node::Roots;
use ferrule_inspect::terminal::{style, watch};
use ferrule_inspect::view::View;
use ferrule_inspect::{check, collect, inspect, json, report};
use ferrule_install::Failure;
use ferrule_install::console::{note, say};
use lexopt::{Arg, Parser, ValueExt as _};

use super::help;

/// The time between two screens of `inspect --watch`.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long `check` and `doctor` wait for a plugin. Plugins wait for locks, at most 10 seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs one of these commands; `None` if the first argument names another one.
pub(super) fn run(plugins: &[&dyn Plugin]) -> Option<Result<ExitCode, Failure>> {
    let command = env::args_os().nth(1)?;
    let work = match command.to_str()? {
        "inspect" => show,
        "gc" => remove,
        "check" => check_all,
        "doctor" => examine,
        _ => return None,
    };
    let mut parser = Parser::from_env();
    // The command itself.
    let _ = parser.next();
    let arguments = Arguments::read(command.to_str()?, parser);
    Some(arguments.and_then(|arguments| match arguments.help {
        Some(help) => {
            say(help.trim_end());
            Ok(ExitCode::SUCCESS)
        }
        None => {
            if let Some(root) = &arguments.root {
                let entered = chroot(root).and_then(|()| env::set_current_dir("/"));
                entered.map_err(|error| failed(format_args!("enter {}: {error}", root.display())))?;
            }
            work(&arguments, plugins)
        }
    }))
}

#[derive(Debug, Default)]
struct Arguments {
    view: Vec<String>,
    root: Option<PathBuf>,
    roots: Roots,
    path: Vec<PathBuf>,
    conf_dir: Option<PathBuf>,
    as_json: bool,
    all: bool,
    watch: Option<Duration>,
    timeout: Option<Duration>,
    dry_run: bool,
    yes: bool,
    help: Option<&'static str>,
}

impl Arguments {
    fn read(command: &str, mut parser: Parser) -> Result<Self, Failure> {
        let mut arguments = Arguments::default();
        while let Some(argument) = parser.next().map_err(Failure::usage)? {
            let option = match argument {
                Arg::Long("help") | Arg::Short('h') => {
                    arguments.help = Some(match command {
                        "inspect" => help::INSPECT,
                        "gc" => help::GC,
                        "check" => help::CHECK,
                        _ => help::DOCTOR,
                    });
                    return Ok(arguments);
                }
                Arg::Value(word) if command == "inspect" => {
                    arguments.view.push(text(word)?);
                    continue;
                }
                Arg::Value(word) => {
                    return Err(Failure::usage(format!("unexpected argument '{}'", word.display())));
                }
                Arg::Long(option) => option.to_owned(),
                Arg::Short(letter) => return Err(Failure::usage(format!("unknown option '-{letter}'"))),
            };
            let mut folder = || -> Result<PathBuf, Failure> {
                let value = parser.value().ok().filter(|value| !value.is_empty());
                value.map(PathBuf::from).ok_or_else(|| Failure::usage(format!("--{option} needs a value")))
            };
            match (command, option.as_str()) {
                (_, "root") => arguments.root = Some(folder()?),
                (_, "init") => {
                    let value = text(parser.value().map_err(Failure::usage)?)?;
                    let pid = value.parse().ok().filter(|pid| *pid > 0);
                    let wrong = || Failure::usage(format!("--init wants a process, not '{value}'"));
                    arguments.roots.init = Some(pid.ok_or_else(wrong)?);
                }
                ("inspect" | "gc" | "check", "cache-dir") => {
                    arguments.roots.results = folder()?.join("results")
                }
                ("inspect" | "gc", "data-dir") => arguments.roots.data_dirs.push(folder()?),
                ("inspect" | "check" | "doctor", "json") => arguments.as_json = true,
                ("inspect" | "check", "all") => arguments.all = true,
                ("inspect", "watch") => {
                    let value = parser.optional_value();
                    arguments.watch = Some(value.map_or(Ok(INTERVAL), |value| seconds(&option, value))?);
                }
                ("check" | "doctor", "timeout") => {
                    let value = parser.value().map_err(Failure::usage)?;
                    arguments.timeout = Some(seconds(&option, value)?);
                }
                ("gc", "dry-run") => arguments.dry_run = true,
                ("gc", "yes") => arguments.yes = true,
                ("check" | "doctor", "bin-dir") => arguments.path.push(folder()?),
                ("doctor", "conf-dir") => arguments.conf_dir = Some(folder()?),
                _ => return Err(Failure::usage(format!("unknown option '--{option}' of {command}"))),
            }
        }
        if arguments.root.is_some() {
            // The node's root folder has the node's /proc.
            arguments.roots.init.get_or_insert(1);
        }
        Ok(arguments)
    }

    fn bin_dirs(&self) -> Vec<PathBuf> {
        if self.path.is_empty() { vec!["/opt/cni/bin".into()] } else { self.path.clone() }
    }

    fn view(&self) -> Result<View, Failure> {
        let words: Vec<&str> = self.view.iter().map(String::as_str).collect();
        Ok(match words.as_slice() {
            [] | ["pods"] => View::Pods { all: self.all },
            ["addresses"] => View::Addresses,
            ["ports"] => View::Ports,
            ["shaping"] => View::Shaping,
            ["links"] => View::Links,
            ["devices"] => View::Devices,
            ["leaks"] => View::Leaks,
            ["why", what] => View::Why((*what).to_owned()),
            ["why"] => return Err(Failure::usage("why needs a container, pod, address or port")),
            _ => return Err(Failure::usage(format!("unknown view '{}'", words.join(" ")))),
        })
    }
}

fn text(word: OsString) -> Result<String, Failure> {
    word.string().map_err(Failure::usage)
}

/// No fractions: Rust's parser of floating-point numbers takes 15 KB.
fn seconds(option: &str, value: OsString) -> Result<Duration, Failure> {
    let value = text(value)?;
    let seconds = value.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    seconds.ok_or_else(|| Failure::usage(format!("--{option} wants a number of seconds, not '{value}'")))
}

fn failed(error: impl Display) -> Failure {
    Failure::new(error)
}

fn show(arguments: &Arguments, _: &[&dyn Plugin]) -> Result<ExitCode, Failure> {
    let view = arguments.view()?;
    let show = || inspect(&arguments.roots, &view, style(), arguments.as_json).map_err(failed);
    if let Some(every) = arguments.watch {
        watch(every, || show().map(|(text, _)| text))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (text, failures) = show()?;
    if text.is_empty() {
        return Err(Failure { status: 3, message: Some("nothing on this node has this name".to_owned()) });
    }
    say(text.trim_end());
    failures.iter().for_each(note);
    Ok(ExitCode::from(u8::from(!failures.is_empty())))
}

fn remove(arguments: &Arguments, _: &[&dyn Plugin]) -> Result<ExitCode, Failure> {
    if arguments.dry_run == arguments.yes {
        return Err(Failure::usage("gc wants either --dry-run or --yes"));
    }
    let is_done = collect(&arguments.roots, arguments.dry_run, &mut |line| say(line)).map_err(failed)?;
    Ok(ExitCode::from(u8::from(!is_done)))
}

fn check_all(arguments: &Arguments, _: &[&dyn Plugin]) -> Result<ExitCode, Failure> {
    let limit = arguments.timeout.unwrap_or(LIMIT);
    let checked = check::run(
        &arguments.roots.results,
        arguments.roots.init,
        &arguments.bin_dirs(),
        limit,
        arguments.all,
    );
    say(report(&checked, arguments.as_json).trim_end());
    Ok(ExitCode::from(u8::from(!checked.is_sound())))
}

fn examine(arguments: &Arguments, plugins: &[&dyn Plugin]) -> Result<ExitCode, Failure> {
    let places = Places {
        conf_dir: arguments.conf_dir.clone().unwrap_or_else(|| "/etc/cni/net.d".into()),
        path: arguments.bin_dirs(),
        limit: arguments.timeout.unwrap_or(LIMIT),
        init: arguments.roots.init,
    };
    let names: Vec<&str> = plugins.iter().map(|plugin| plugin.name()).collect();
    let subjects = doctor::examine(&places, &names).map_err(failed)?;
    let text = match arguments.as_json {
        true => json::text(&json::examined(&subjects)),
        false => doctor::text(&subjects, style().width),
    };
    say(text.trim_end());
    let has_errors = doctor::findings(&subjects).iter().any(|finding| finding.severity == Severity::Error);
    Ok(ExitCode::from(u8::from(has_errors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Arguments, Failure> {
        let command = words.split(' ').next().unwrap();
        Arguments::read(command, Parser::from_iter(words.split(' ')))
    }

    #[test]
    fn views_and_options() {
        let why = read("inspect why 10.1.0.2 --json --watch=5 --data-dir /d --cache-dir=/c").unwrap();
        assert_eq!(why.view().unwrap(), View::Why("10.1.0.2".to_owned()));
        assert!(why.as_json && why.watch == Some(Duration::from_secs(5)));
        assert_eq!(why.roots.results, PathBuf::from("/c/results"));
        assert_eq!(why.roots.data_dirs.len(), 2);
        assert_eq!(read("inspect --watch").unwrap().watch, Some(Duration::from_secs(2)));
        assert_eq!(read("inspect").unwrap().view().unwrap(), View::Pods { all: false });
        assert_eq!(read("inspect --all").unwrap().view().unwrap(), View::Pods { all: true });
        assert_eq!(read("gc --init 7").unwrap().roots.init, Some(7));
        assert!(read("gc --yes").unwrap().yes && read("gc -h").unwrap().help.is_some());
        let check = read("check --root /host --bin-dir /a --bin-dir=/b").unwrap();
        assert!(check.root == Some("/host".into()) && check.path.len() == 2 && check.roots.init == Some(1));
        assert_eq!(read("doctor --conf-dir /c").unwrap().conf_dir, Some(PathBuf::from("/c")));
    }

    #[test]
    fn wrong_usage() {
        for words in [
            "gc pods",
            "gc --json",
            "check --yes",
            "doctor --cache-dir /c",
            "inspect --bin-dir /b",
            "inspect --cache-dir",
            "inspect --watch=0",
            "gc --init=0",
            "inspect -x",
        ] {
            assert_eq!(read(words).unwrap_err().status, 2, "{words}");
        }
        for words in ["inspect bogus", "inspect why", "inspect why a b"] {
            assert_eq!(read(words).unwrap().view().unwrap_err().status, 2, "{words}");
        }
    }
}

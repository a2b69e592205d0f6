//! The command line: the flags of the reference's daemon, with one dash or two, and a value after `=` or a blank.
//! The comments are the texts of `--help` and of the man page.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::{ArgAction, Parser};

use crate::action::Timing;
use crate::lease::Millis;

/// Takes DHCP leases for containers, and keeps them renewed
#[derive(Clone, Debug, Parser)]
#[command(name = "ferrule-dhcp", version = VERSION, args_override_self = true, before_help = concat!("ferrule-dhcp v", env!("CARGO_PKG_VERSION")))]
pub(crate) struct Arguments {
    /// The word after the name in the reference's unit files.
    #[arg(hide = true, value_parser = ["daemon"])]
    _daemon: Option<String>,
    /// The socket; leases are in a folder beside it (/run/cni/dhcp.leases)
    #[arg(long = "socketpath", value_name = "FILE", default_value = ferrule_dhcp::wire::SOCKET)]
    socket: PathBuf,
    /// Put this before the paths of the socket and of namespaces
    #[arg(long = "hostprefix", value_name = "DIR", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Write the process ID to this file
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    pub(crate) pidfile: Option<PathBuf>,
    /// Ask servers to broadcast their answers
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", hide_default_value = true, hide_possible_values = true,
        value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) broadcast: bool,
    /// The longest wait for an answer to one message
    #[arg(long = "timeout", value_name = "DURATION", default_value = "10s", value_parser = millis)]
    answer: Millis,
    /// The longest pause between two attempts
    #[arg(long = "resendmax", value_name = "DURATION", default_value = "1m2s", value_parser = millis)]
    pause: Millis,
    /// The limit for one lease or one renewal
    #[arg(long = "resendtimeout", value_name = "DURATION", default_value = "3m28s", value_parser = millis)]
    limit: Millis,
    /// Write the man page of a release into a folder
    #[arg(long, hide = true)]
    pub(crate) generate: Option<PathBuf>,
}

const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

impl Arguments {
    /// Reads the arguments of this process. Ends it after wrong usage, with status 2, and after help.
    pub(crate) fn read() -> Self {
        Self::parse_from(std::env::args_os().map(with_two_dashes))
    }

    /// The socket behind the prefix.
    pub(crate) fn socket(&self) -> PathBuf {
        format!("{}{}", self.prefix, self.socket.display()).into()
    }

    pub(crate) fn timing(&self) -> Timing {
        Timing { answer: self.answer, pause: self.pause, limit: self.limit }
    }
}

/// Go's flags have one dash or two.
fn with_two_dashes(argument: OsString) -> OsString {
    match argument.as_bytes() {
        [b'-', second, _, ..] if *second != b'-' => [OsString::from("-"), argument].into_iter().collect(),
        _ => argument,
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("Error writing pidfile {path:?}: path not absolute"))
    }
}

/// A duration of Go, such as `1m30s`, `1.5h` or `500ms`.
fn millis(text: &str) -> Result<Millis, String> {
    let millis = humantime::parse_duration(text).map_err(|error| error.to_string())?.as_millis();
    Millis::try_from(millis).ok().filter(|millis| *millis > 0).ok_or_else(|| "out of range".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Arguments, String> {
        let words = ["ferrule-dhcp"].into_iter().chain(text.split_whitespace());
        Arguments::try_parse_from(words.map(|word| with_two_dashes(word.into())))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_have_gos_forms() {
        let parsed =
            parse("daemon -socketpath /x/y.sock --hostprefix=/host -broadcast --timeout 2s -resendmax=1m2s --resendtimeout 500ms -pidfile /p")
                .unwrap();
        assert_eq!((parsed.socket(), parsed.prefix.as_str()), ("/host/x/y.sock".into(), "/host"));
        let timing = parsed.timing();
        assert_eq!((parsed.pidfile, parsed.broadcast), (Some("/p".into()), true));
        assert_eq!((timing.answer, timing.pause, timing.limit), (2000, 62_000, 500));
        let defaults = parse("-broadcast=false").unwrap();
        assert_eq!((defaults.socket(), defaults.broadcast), ("/run/cni/dhcp.sock".into(), false));
        assert!(parse("-broadcast=T").unwrap().broadcast);
    }

    #[test]
    fn misuse_is_named() {
        for (text, part) in [
            ("-bogus", "unexpected argument '--bogus'"),
            ("-timeout", "a value is required for '--timeout <DURATION>'"),
            ("-timeout 10", "invalid value '10' for '--timeout <DURATION>'"),
            ("-timeout 0s", "invalid value '0s'"),
            ("-pidfile rel", r#"Error writing pidfile "rel": path not absolute"#),
            ("x", "invalid value 'x'"),
            ("-broadcast=x", "invalid value 'x'"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn durations() {
        for (text, expected) in
            [("1h1m1.5s", Some(3_661_500)), ("3m28s", Some(208_000)), ("1.5h", Some(5_400_000))]
        {
            assert_eq!(millis(text).ok(), expected, "{text}");
        }
        for text in ["1", "", "s", "1x"] {
            assert!(millis(text).is_err(), "{text}");
        }
    }
}

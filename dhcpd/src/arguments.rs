//! The command line: the flags of the reference's daemon, with one dash or two, and a value after `=` or a blank.

use std::path::PathBuf;

use crate::lease::Millis;
use crate::machine::Timing;

/// The text of `-h`.
pub(crate) const USAGE: &str = concat!(
    "Usage of ferrule-dhcp v",
    env!("CARGO_PKG_VERSION"),
    ", or dhcp daemon:
  -broadcast             ask servers to broadcast their answers
  -hostprefix DIR        put this before the paths of the socket and of namespaces
  -pidfile FILE          write the process ID to this file
  -resendmax DURATION    the longest pause between two attempts (default 1m2s)
  -resendtimeout DURATION
                         the limit for one lease or one renewal (default 3m28s)
  -socketpath FILE       the socket (default /run/cni/dhcp.sock); leases are in a
                         folder beside it (/run/cni/dhcp.leases)
  -timeout DURATION      the longest wait for an answer to one message (default 10s)
"
);

/// The decoded flags.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) socket: PathBuf,
    pub(crate) pidfile: Option<PathBuf>,
    pub(crate) prefix: String,
    pub(crate) broadcast: bool,
    pub(crate) timing: Timing,
}

/// Why the daemon does not start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    /// `-h`.
    Help,
    /// This is wrong.
    Wrong(String),
}

impl Arguments {
    /// Reads the flags. Skips the word `daemon`, so that the reference's unit files work.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, Misuse> {
        let wrong = |text: String| Misuse::Wrong(text);
        let mut parsed = Arguments {
            socket: ferrule_dhcp::wire::SOCKET.into(),
            pidfile: None,
            prefix: String::new(),
            broadcast: false,
            timing: Timing { answer: 10_000, pause: 62_000, limit: 208_000 },
        };
        let mut arguments = arguments.into_iter().skip_while(|argument| argument == "daemon");
        while let Some(argument) = arguments.next() {
            let flag = argument.strip_prefix("--").or(argument.strip_prefix('-'));
            let flag = flag.filter(|flag| !flag.is_empty());
            let flag = flag.ok_or_else(|| wrong(format!("unexpected argument {argument:?}")))?;
            let (flag, given) = match flag.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (flag, None),
            };
            let mut value = || {
                let next = given.clone().or_else(|| arguments.next());
                next.ok_or_else(|| wrong(format!("flag needs an argument: -{flag}")))
            };
            let duration = |text: String| {
                let invalid = || {
                    wrong(format!("invalid value {text:?} for flag -{flag}: not a duration such as 1m30s"))
                };
                parse_duration(&text).filter(|time| *time > 0).ok_or_else(invalid)
            };
            match flag {
                "socketpath" => parsed.socket = value()?.into(),
                "pidfile" => parsed.pidfile = Some(value()?.into()),
                "hostprefix" => parsed.prefix = value()?,
                "timeout" => parsed.timing.answer = duration(value()?)?,
                "resendmax" => parsed.timing.pause = duration(value()?)?,
                "resendtimeout" => parsed.timing.limit = duration(value()?)?,
                "broadcast" => {
                    parsed.broadcast = match given.as_deref() {
                        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => true,
                        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => false,
                        Some(text) => {
                            return Err(wrong(format!("invalid boolean value {text:?} for -broadcast")));
                        }
                    }
                }
                "h" | "help" => return Err(Misuse::Help),
                _ => return Err(wrong(format!("flag provided but not defined: -{flag}"))),
            }
        }
        if let Some(pidfile) = parsed.pidfile.as_ref().filter(|path| !path.is_absolute()) {
            let text =
                format!("Error writing pidfile {:?}: path not absolute", pidfile.display().to_string());
            return Err(wrong(text));
        }
        if !parsed.prefix.is_empty() {
            parsed.socket = format!("{}{}", parsed.prefix, parsed.socket.display()).into();
        }
        Ok(parsed)
    }
}

/// A duration of Go, such as `1m30s`, `1.5h` or `500ms`, in milliseconds.
fn parse_duration(text: &str) -> Option<Millis> {
    let (mut rest, mut total) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let millis = match unit {
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 6e4,
            "h" => 3.6e6,
            "us" | "µs" => 1e-3,
            "ns" => 1e-6,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * millis;
        rest = tail;
    }
    (!text.is_empty()).then_some(total.round() as Millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Arguments, Misuse> {
        Arguments::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags_have_gos_forms() {
        let parsed =
            parse("daemon -socketpath /x/y.sock --hostprefix=/host -broadcast --timeout 2s -resendmax=1m2s --resendtimeout 500ms -pidfile /p")
                .unwrap();
        assert_eq!((parsed.socket, parsed.prefix.as_str()), ("/host/x/y.sock".into(), "/host"));
        assert_eq!((parsed.pidfile, parsed.broadcast), (Some("/p".into()), true));
        assert_eq!((parsed.timing.answer, parsed.timing.pause, parsed.timing.limit), (2000, 62_000, 500));
        let defaults = parse("-broadcast=false").unwrap();
        assert_eq!((defaults.socket, defaults.broadcast), ("/run/cni/dhcp.sock".into(), false));
    }

    #[test]
    fn misuse_is_named() {
        assert_eq!(parse("-h").unwrap_err(), Misuse::Help);
        for (text, part) in [
            ("-bogus", "not defined: -bogus"),
            ("-timeout", "needs an argument: -timeout"),
            ("-timeout 10", "not a duration"),
            ("-timeout 0s", "not a duration"),
            ("-pidfile rel", r#"Error writing pidfile "rel": path not absolute"#),
            ("x", "unexpected"),
            ("-broadcast=x", "boolean"),
        ] {
            let Misuse::Wrong(why) = parse(text).unwrap_err() else { panic!("{text}") };
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn durations() {
        for (text, expected) in [
            ("1h1m1.5s", Some(3_661_500)),
            ("3m28s", Some(208_000)),
            ("1", None),
            ("", None),
            ("s", None),
            ("1d", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }
}

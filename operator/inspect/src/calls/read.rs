//! Reads and selects calls.

use std::cmp::Reverse;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use cni_common::call_log::switch::{DEFAULT_FILE, Destination};
use cni_common::call_log::{configured, old};
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::file;

use super::Call;

/// The longest line of a log in bytes. A large file without lines is no log.
const LONGEST: u64 = 4 << 20;
/// How many calls are printed if the user does not say.
const LAST: usize = 20;

/// Which calls to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// At most this many.
    pub most: usize,
    /// The slowest ones instead of the last ones.
    pub slowest: bool,
    /// Only those that failed.
    pub failed: bool,
    /// Only those of a container, by the beginning of its ID or by its pod: `NAME` or `NAMESPACE/NAME`.
    pub container: Option<String>,
    /// Only those of a trace, by the beginning of its ID.
    pub trace: Option<String>,
}

impl Default for Selection {
    fn default() -> Self {
        Selection { most: LAST, slowest: false, failed: false, container: None, trace: None }
    }
}

impl Selection {
    /// The last calls in their order, or the slowest ones, the slowest first.
    pub fn of(&self, mut calls: Vec<Call>) -> Vec<Call> {
        calls.retain(|call| self.has(call));
        if self.slowest {
            calls.sort_by_key(|call| Reverse(call.micros()));
            calls.truncate(self.most);
        } else {
            calls.sort_by(|a, b| a.text("time").cmp(b.text("time")));
            calls.drain(..calls.len().saturating_sub(self.most));
        }
        calls
    }

    fn has(&self, call: &Call) -> bool {
        let is_of = |name: &String| {
            let pod = call.text("pod");
            pod == name
                || pod.split('/').next_back() == Some(name)
                || call.text("container").starts_with(name)
        };
        (!self.failed || call.error().is_some())
            && self.container.as_ref().is_none_or(is_of)
            && self
                .trace
                .as_ref()
                .is_none_or(|id| call.trace().starts_with(id.as_str()) && !call.trace().is_empty())
    }
}

/// The log file: the given one, or the configured one.
///
/// # Errors
/// The configuration is wrong, or the log is not in a file.
pub fn log_file(given: Option<&Path>) -> Result<PathBuf, CniError> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let (place, command) = match configured().map_err(CniError::internal)? {
        None => return Ok(DEFAULT_FILE.into()),
        Some(Destination::File(path, _)) => return Ok(path),
        Some(Destination::Journald) => ("the journal", "journalctl -t ferrule -o cat"),
        Some(Destination::Syslog) => ("syslog", "grep -h 'ferrule\\[' /var/log/syslog"),
    };
    let advice = format!("try: {command} | ferrule log --file /dev/stdin");
    Err(CniError::internal(format!("the log is in {place}; {advice}")))
}

/// The calls in the log file and in the old one. One of them may be missing.
///
/// # Errors
/// A file cannot be read, or both are missing.
pub fn calls(path: &Path) -> Result<Vec<Call>, CniError> {
    let (mut calls, mut is_there) = (Vec::new(), false);
    for path in [old(path).as_path(), path] {
        if let Some(file) = open(path)? {
            is_there = true;
            let read = each_line(file, |line| calls.extend(parse(line)));
            read.context(|| format!("cannot read {}", path.display()))?;
        }
    }
    match is_there {
        true => Ok(calls),
        false => Err(CniError::internal(format!("there is no log {}", path.display()))),
    }
}

/// Opens a log file; `None` if it does not exist. Waits for no FIFO, except for one that this process has open already, such as its
/// standard input.
pub(super) fn open(path: &Path) -> Result<Option<File>, CniError> {
    let is_open = path == "/dev/stdin" || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd");
    match if is_open { File::open(path) } else { file::open_named(path) } {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some).context(|| format!("cannot read {}", path.display())),
    }
}

/// Reads lines with their ends. The last one may have none.
pub(super) fn each_line(file: impl Read, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    while (&mut file).take(LONGEST).read_until(b'\n', &mut line)? > 0 {
        if line.len() as u64 == LONGEST && !line.ends_with(b"\n") {
            return Err(io::Error::other(format!("a line of it has {LONGEST} bytes or more")));
        }
        each(&line);
        line.clear();
    }
    Ok(())
}

/// The calls in the content of a log file. Other lines are skipped.
pub fn parse(bytes: &[u8]) -> Vec<Call> {
    String::from_utf8_lossy(bytes).lines().filter_map(Call::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"{"time":"3","plugin":"a","us":5,"error":{"code":7,"msg":"m"},"container":"0a1","pod":"shop/web","trace":{"id":"4bf9"}}
{"time":"1","plu{"time":"1","plugin":"b","us":9,"result":{},"container":"0a1b2c","pod":"shop/webmail"}
not a call
Nov 22 10:00:00 node ferrule[7]: {"time":"2","plugin":"c","us":7,"container":"0b1","pod":""}
"#;

    fn select(selection: &Selection) -> String {
        selection.of(parse(LOG.as_bytes())).iter().map(|call| call.text("plugin")).collect()
    }

    #[test]
    fn the_last_the_slowest_and_the_failed_ones() {
        let all = Selection::default();
        assert_eq!(select(&all), "bca");
        assert_eq!(select(&Selection { most: 2, ..all.clone() }), "ca");
        assert_eq!(select(&Selection { most: 2, slowest: true, ..all.clone() }), "bc");
        assert_eq!(select(&Selection { failed: true, ..all.clone() }), "a");
        for (trace, plugins) in [("4bf", "a"), ("", "a"), ("bf9", "")] {
            assert_eq!(
                select(&Selection { trace: Some(trace.to_owned()), ..all.clone() }),
                plugins,
                "{trace}"
            );
        }
        assert_eq!(parse(LOG.as_bytes())[0].error(), Some((7, "m")));
    }

    #[test]
    fn those_of_a_container_or_pod() {
        for (container, plugins) in
            [("0a1", "ba"), ("0a1b", "b"), ("web", "a"), ("shop/webmail", "b"), ("shop", ""), ("0", "bca")]
        {
            let selection = Selection { container: Some(container.to_owned()), ..Selection::default() };
            assert_eq!(select(&selection), plugins, "{container}");
        }
    }
}

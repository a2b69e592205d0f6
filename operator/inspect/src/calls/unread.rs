//! The calls that the log has got since an earlier run. The log is rotated in between, but each call is read once.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use cni_common::call_log::old;
use cni_common::spec::{CniError, Context as _};

use super::Call;
use super::read::{each_line, open, parse};

/// How many bytes distinguish log files: the time of their first call, and its plugin.
const HEAD: usize = 64;

/// How far the log is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// How many bytes of the file.
    pub offset: u64,
    /// How the file begins. No two log files begin with the same time.
    pub head: String,
}

impl Position {
    /// Reads the text that [`fmt::Display`] has written.
    pub fn parse(text: &str) -> Option<Self> {
        let (offset, head) = text.split_once(' ')?;
        Some(Position { offset: offset.parse().unwrap_or(0), head: head.to_owned() })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.offset, self.head)
    }
}

/// Reads the calls of a log behind the position, and moves it.
///
/// # Errors
/// The log cannot be read.
pub fn unread(log: &Path, position: &mut Position) -> Result<Vec<Call>, CniError> {
    // The current one first: a rotation in between then makes both the same file.
    let current = open(log)?;
    let former = open(&old(log))?;
    of_files(position, former, current).context(|| format!("cannot read {}", log.display()))
}

/// As [`unread`], of the old file and the current one.
pub(super) fn of_files<F: Read + Seek>(
    position: &mut Position,
    former: Option<F>,
    current: Option<F>,
) -> io::Result<Vec<Call>> {
    let (mut files, mut calls) = (Vec::new(), Vec::new());
    for mut file in [former, current].into_iter().flatten() {
        files.extend(head(&mut file)?.map(|head| (head, file)));
    }
    files.dedup_by(|(one, _), (other, _)| one == other);
    if let Some(known) = files.iter().rposition(|(head, _)| *head == position.head) {
        files.drain(..known);
    }
    for (head, mut file) in files {
        let start = if head == position.head { position.offset } else { 0 };
        file.seek(SeekFrom::Start(start))?;
        let mut offset = start;
        each_line(file, |line| {
            if line.ends_with(b"\n") {
                offset += line.len() as u64;
                calls.extend(parse(line));
            }
        })?;
        *position = Position { offset, head };
    }
    Ok(calls)
}

/// How the file begins; `None` if it is too short to have a call.
fn head(file: &mut impl Read) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(HEAD as u64).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).replace(char::is_control, " ");
    Ok((bytes.len() == HEAD).then_some(text))
}

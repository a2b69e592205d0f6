//! Standard input and output, without std's: their buffers and locks would be the largest part of the memory
//! that a call of VERSION touches. Nothing else of a plugin reads standard input, and a request is read, and
//! an answer written, as a whole.

use std::io;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{fstat, makedev};
use rustix::buffer::spare_capacity;
use rustix::io::retry_on_intr;
use rustix::stdio::{stdin, stdout};

use crate::spec::Json;

/// The initial size of the buffer for a request: most fit.
const REQUEST_SIZE: usize = 4096;
/// How much space each read has at least.
const READ_SIZE: usize = 1024;

/// The largest request in bytes. One with a result has a few kB, the list of 10,000 valid attachments a MB. A decoded document can have 40
/// times the size of its text.
const REQUEST_LIMIT: usize = 4 << 20;

/// Reads standard input to its end.
pub(super) fn read_request() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(REQUEST_SIZE);
    while read_more(&mut bytes)? > 0 {
        if bytes.len() > REQUEST_LIMIT {
            return Err(io::Error::other(format!("the request has more than {REQUEST_LIMIT} bytes")));
        }
    }
    if bytes.is_empty() && stdin_was_closed() {
        return Err(io::Error::other("stdin is closed or /dev/null"));
    }
    Ok(bytes)
}

/// Appends what one read returns; 0 at the end.
fn read_more(bytes: &mut Vec<u8>) -> io::Result<usize> {
    bytes.reserve(READ_SIZE);
    Ok(retry_on_intr(|| rustix::io::read(stdin(), spare_capacity(bytes)))?)
}

/// Whether standard input was closed when the program started. In this case Rust's runtime opens `/dev/null`
/// with `O_RDWR`. A caller that redirects from `/dev/null` opens it with `O_RDONLY`.
fn stdin_was_closed() -> bool {
    let is_null = fstat(stdin()).is_ok_and(|stat| stat.st_rdev == makedev(1, 3));
    let flags = fcntl(stdin(), FcntlArg::F_GETFL).map(OFlag::from_bits_truncate);
    is_null && flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_RDWR)
}

/// Reads a JSON document whose sender may keep the pipe open, send nothing, or send malformed JSON: until the
/// document is complete, standard input ends, nothing comes for `limit`, `limit` has passed since the
/// first bytes, or more than [`REQUEST_LIMIT`] have come. The clock is not read for a document that comes at once.
pub(super) fn read_document_within(limit: Duration) -> Option<Json> {
    let mut bytes = Vec::with_capacity(READ_SIZE);
    let mut first: Option<Instant> = None;
    loop {
        let left = first.map_or(limit, |first| limit.saturating_sub(first.elapsed()));
        let mut ready = [PollFd::new(stdin(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)) {
            Ok(0) | Err(_) => return Json::parse(&bytes).ok(),
            // Endless input is always ready, so poll never times out.
            Ok(_) if left.is_zero() || bytes.len() > REQUEST_LIMIT => return None,
            Ok(_) => {}
        }
        if read_more(&mut bytes).unwrap_or(0) == 0 {
            return Json::parse(&bytes).ok();
        }
        if let Ok(json) = Json::parse(&bytes) {
            return Some(json);
        }
        first.get_or_insert_with(Instant::now);
    }
}

/// Writes an answer to standard output.
pub(super) fn write_answer(mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match retry_on_intr(|| rustix::io::write(stdout(), text))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => text = text.get(written..).unwrap_or_default(),
        }
    }
    Ok(())
}

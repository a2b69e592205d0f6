//! Dumps during which objects change.

use nix::errno::Errno;

use super::Answer;
use crate::netlink::error::Error;

/// Number of attempts at a dump that is interrupted. The last result is used even if it was interrupted, except with
/// [`Interrupted::Refused`].
const DUMP_TRIES: u32 = 5;

/// What an interrupted dump means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupted {
    /// It is repeated, and the last attempt counts.
    Repeated,
    /// It is repeated, and an error if the last attempt is interrupted too.
    Refused,
    /// It is not repeated, and the caller asks whether a dump was interrupted since it last asked.
    Told(bool),
}

/// Repeats an interrupted dump.
pub(super) fn repeated(mut again: impl FnMut() -> (Answer, bool), must_be_whole: bool) -> Answer {
    let (mut answer, mut is_interrupted) = again();
    for _ in 2..DUMP_TRIES {
        if !is_interrupted {
            break;
        }
        (answer, is_interrupted) = again();
    }
    if is_interrupted && must_be_whole && answer.is_ok() {
        let why = format!("objects changed during each of {DUMP_TRIES} attempts to list them");
        return Err(Error::new(Errno::EINTR, why));
    }
    answer
}

//! Remarks for the closing lines of `./test.sh`: what a test did not measure or do at the first attempt, although
//! it passed.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Remarks that a measurement or test case is repeated because the first one failed.
pub fn repeated(what: impl Display) {
    say("repeated", what);
}

/// Writes the line that `./test.sh` looks for. `eprintln!` would show it only for tests that fail. One write,
/// because other threads write too.
fn say(kind: &str, what: impl Display) {
    let _ = io::stderr().write_all(format!("REMARK {kind}: {what}\n").as_bytes());
}

//! Lines for the user. A reader that has closed the pipe does not stop an installation.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line to standard output.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Prints a line to standard error.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "ferrule: {line}");
}

//! Lines for the user. A reader that has closed the pipe does not stop an installation.

use std::io::{self, Write};

use cni_common::line::Text;

/// Prints a line or lines to standard output.
pub fn say(text: impl Into<Text>) {
    let _ = writeln!(io::stdout().lock(), "{}", text.into().trim_end_matches('\n'));
}

/// Prints a line to standard error.
pub fn note(line: impl Into<Text>) {
    let _ = writeln!(io::stderr().lock(), "ferrule: {}", line.into());
}

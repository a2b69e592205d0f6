//! The terminal, if standard output is one.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::thread;
use std::time::Duration;

use crate::line::Text;
use crate::table::Style;

/// How to print on standard output: the terminal's width, and colours unless `NO_COLOR` is set or `TERM` is `dumb`. No limit
/// and no colours in a file or a pipe.
pub fn style() -> Style {
    if !io::stdout().is_terminal() {
        return Style::default();
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let colours = !is_set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb");
    Style { width: Some(size.filter(|width| *width > 0).unwrap_or(80)), colours }
}

/// Prints what `screen` returns again and again, on an empty screen if it is a terminal. Ends with an error of `screen`, or
/// when the reader has closed the output.
///
/// # Errors
/// That of `screen`.
pub fn watch<E>(every: Duration, mut screen: impl FnMut() -> Result<Text, E>) -> Result<(), E> {
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    loop {
        let text = screen()?;
        let mut output = io::stdout().lock();
        if write!(output, "{clear}{text}").and_then(|()| output.flush()).is_err() {
            return Ok(());
        }
        drop(output);
        thread::sleep(every);
    }
}

//! A line for the operator. Names, IDs, paths and errors come from containers and files of others: a terminal would obey their control
//! characters, and a newline would look like a line of ours.

use std::fmt;

/// A line without characters that a terminal obeys or hides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line(String);

impl Line {
    /// The text on one line.
    pub fn new(text: impl fmt::Display) -> Line {
        Line(clean(&text.to_string()))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// With a space for each control character, and for each character that has no width or changes the direction of the text.
pub(crate) fn clean(text: &str) -> String {
    text.replace(is_hidden, " ")
}

/// # References
/// Unicode's general categories Cc and Cf, as far as terminals obey them.
fn is_hidden(c: char) -> bool {
    let is_format =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_nothing_that_a_terminal_obeys() {
        let comm = "a\u{1b}]0;x\u{7}\nremoved 3\u{9b}2J\u{202e}b";
        assert_eq!(Line::new(comm).to_string(), "a ]0;x  removed 3 2J b");
        assert_eq!(Line::new("grün").to_string(), "grün");
    }
}

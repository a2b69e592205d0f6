//! Text for an operator. Names, IDs, paths and errors come from containers and foreign files: a terminal would obey their control
//! characters, and a newline would look like a line of ours. So what prints takes a [`Line`] or a [`Text`].

use std::fmt::{self, Display};
use std::io::{self, Write as _};
use std::ops::{Deref, RangeInclusive};

/// Writes a line to standard error, whose text comes as for `format!`. `eprintln!` panics if that fails, as on a full disk: DEL
/// would end before its work.
#[macro_export]
macro_rules! remark {
    ($($text:tt)*) => { $crate::line::write_remark(format_args!($($text)*)) };
}

/// As [`remark!`](crate::remark!).
pub fn write_remark(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{}\n", Line::new(text)).as_bytes());
}

/// A line without characters that a terminal obeys or hides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Line(String);

/// Lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(String);

impl Line {
    /// The text on one line.
    pub fn new(text: impl Display) -> Line {
        Line(clean(&text.to_string()))
    }
}

impl Text {
    /// The lines of a text whose parts are clean: a report, a table, a program. Colours stay.
    pub fn lines(text: impl Display) -> Text {
        let (text, mut lines) = (text.to_string(), String::new());
        let mut rest = text.as_str();
        while let Some(c) = rest.chars().next() {
            let colour = COLOURS.into_iter().find(|colour| rest.starts_with(colour));
            match colour {
                Some(colour) => lines.push_str(colour),
                None if is_hidden(c) && !['\n', '\t'].contains(&c) => lines.push(' '),
                None => lines.push(c),
            }
            rest = &rest[colour.map_or(c.len_utf8(), str::len)..];
        }
        Text(lines)
    }

    /// A JSON document. Its strings keep all characters, some as escape sequences of JSON.
    pub fn json(document: impl Display) -> Text {
        let mut text = String::new();
        for c in document.to_string().chars() {
            match is_hidden(c) && c != '\n' {
                true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}")),
                false => text.push(c),
            }
        }
        Text(text)
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Line> for Text {
    fn from(Line(text): Line) -> Text {
        Text(text)
    }
}

impl From<&Line> for Text {
    fn from(line: &Line) -> Text {
        line.clone().into()
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Text {
        Line::new(text).into()
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Text {
        Line::new(text).into()
    }
}

impl From<fmt::Arguments<'_>> for Text {
    fn from(text: fmt::Arguments<'_>) -> Text {
        Line::new(text).into()
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// With a space for each control character, and for each character that has no width or changes the direction of the text.
pub fn clean(text: &str) -> String {
    text.replace(is_hidden, " ")
}

/// The colours of our tables: red, green, yellow, and none again.
const COLOURS: [&str; 4] = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[39m"];

/// # References
/// The general categories Cf, Zl and Zp of Unicode 16, with U+2065, which is reserved for Cf.
const FORMATS: [RangeInclusive<char>; 20] = [
    '\u{ad}'..='\u{ad}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{180e}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0001}'..='\u{e0001}',
    '\u{e0020}'..='\u{e007f}',
];

fn is_hidden(c: char) -> bool {
    c.is_control() || (!c.is_ascii() && FORMATS.iter().any(|range| range.contains(&c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMM: &str = "a\u{1b}]0;x\u{7}\nremoved 3\u{9b}2J\u{202e}b\u{61c}\u{ad}\u{180e}\u{e0041}";

    #[test]
    fn a_line_has_nothing_that_a_terminal_obeys() {
        assert_eq!(Line::new(COMM).to_string(), "a ]0;x  removed 3 2J b    ");
        for text in ["grün", "日本 \u{2027}x", "👍"] {
            assert_eq!(Line::new(text).to_string(), text);
        }
        for shown in [Text::from(COMM), format_args!("{COMM}").into(), (&COMM.to_owned()).into()] {
            assert!(!shown.contains(is_hidden), "{shown:?}");
        }
    }

    #[test]
    fn a_text_keeps_newlines_and_the_colours_of_tables() {
        let lines = Text::lines("a\n\tb\r\x1b[32malive\x1b[39m\x1b[8m\u{9b}2J\n");
        assert_eq!(&*lines, "a\n\tb \x1b[32malive\x1b[39m [8m 2J\n");
    }

    #[test]
    fn a_document_keeps_its_values() {
        let document = serde_json::json!({"comm": COMM});
        let shown = Text::json(&document);
        assert!(!shown.contains(is_hidden), "{shown}");
        assert_eq!(shown.parse::<serde_json::Value>().unwrap(), document);
        assert_eq!(&*Text::json(format_args!("{:#}", serde_json::json!([1]))), "[\n  1\n]");
    }
}

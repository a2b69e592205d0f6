//! Tables of text. Pure: rows and a width in, text out.

use tabled::builder::Builder;
use tabled::settings::peaker::Priority;
use tabled::settings::style::Style as Lines;
use tabled::settings::{Color, Padding, Width};
use textwrap::{Options, WordSplitter};

use crate::line::clean;

/// The space between columns.
const GAP: usize = 2;
/// The indentation of the lines below a row.
const INDENT: usize = 4;

/// A row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// One cell for each column.
    pub cells: Vec<String>,
    /// A text that is printed below it, wrapped to the width.
    pub note: Option<String>,
}

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// The width of the terminal in characters; `None` for no limit.
    pub width: Option<usize>,
    /// Whether to use colours.
    pub colours: bool,
}

/// Prints a table. If it is wider than the terminal, the widest columns shrink first.
pub fn layout(titles: &[&str], rows: &[Row], style: Style) -> String {
    let mut builder = Builder::default();
    builder.push_record(titles.iter().copied());
    for row in rows {
        builder.push_record(row.cells.iter().map(|text| clean(text)));
    }
    let mut table = builder.build();
    table.with(Lines::empty()).with(Padding::new(0, GAP, 0, 0));
    for (at, row) in rows.iter().enumerate().filter(|_| style.colours) {
        for (column, (title, text)) in titles.iter().zip(&row.cells).enumerate() {
            if let Some(colour) = colour(title, text) {
                table.modify((at + 1, column), colour);
            }
        }
    }
    if let Some(width) = style.width {
        table.with(Width::truncate(width + GAP).suffix("…").priority(Priority::max(true)));
    }
    let notes = [None].into_iter().chain(rows.iter().map(|row| row.note.as_ref()));
    let mut text = String::new();
    for (line, note) in table.to_string().lines().zip(notes) {
        text = text + line.trim_end() + "\n";
        if let Some(note) = note {
            text += &wrapped(note, INDENT, style.width);
        }
    }
    text
}

/// The colour of a state or an outcome.
fn colour(title: &str, text: &str) -> Option<Color> {
    match (title, text) {
        ("STATE", "alive") => Some(Color::FG_GREEN),
        ("STATE", "dead") => Some(Color::FG_RED),
        ("STATE", "unknown") => Some(Color::FG_YELLOW),
        ("OUTCOME", text) if text.starts_with("error ") => Some(Color::FG_RED),
        _ => None,
    }
}

/// Indented lines that are no longer than the width. A longer word is divided.
pub fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let indent = " ".repeat(indent);
    let options = Options::new(width.unwrap_or(usize::MAX)).word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(&clean(text), options.initial_indent(&indent).subsequent_indent(&indent)) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: [&str; 3] = ["POD", "ADDRESS", "STATE"];

    fn row(cells: [&str; 3]) -> Row {
        Row { cells: cells.map(str::to_owned).into(), note: None }
    }

    fn at(width: usize) -> Style {
        Style { width: Some(width), colours: false }
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_blanks_at_the_end() {
        let rows = [row(["shop/web-0", "10.1.0.2", "alive"]), row(["x", "", ""])];
        let text = layout(&TITLES, &rows, at(80));
        assert_eq!(text, "POD         ADDRESS   STATE\nshop/web-0  10.1.0.2  alive\nx\n");
        assert_eq!(layout(&TITLES, &rows, Style::default()), text);
    }

    #[test]
    fn the_widest_column_shrinks_and_no_line_exceeds_the_width() {
        let rows = [row(["a-namespace/a-pod-with-a-long-name", "2001:db8:1:2:3:4:5:6", "alive"])];
        let text = layout(&TITLES, &rows, at(40));
        assert!(text.contains("…") && text.contains("alive"), "{text}");
        for width in [10, 22, 30, 80, 200] {
            for line in layout(&TITLES, &rows, at(width)).lines() {
                assert!(line.chars().count() <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn colours_do_not_count_for_the_width() {
        let rows = [row(["alive", "x", "alive"])];
        let text = layout(&TITLES, &rows, Style { width: Some(22), colours: true });
        assert!(text.ends_with("alive  x        \x1b[32malive\x1b[39m\n"), "{text:?}");
    }

    #[test]
    fn notes_are_wrapped() {
        let rows = [Row { note: Some("no cache entry, no process".into()), ..row(["x", "y", "z"]) }];
        let text = layout(&TITLES, &rows, at(24));
        assert!(text.ends_with("\n    no cache entry, no\n    process\n"), "{text:?}");
        assert_eq!(wrapped("0123456789", 2, Some(6)), "  0123\n  4567\n  89\n");
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        let rows = [Row { note: Some("a\nb".into()), ..row(["x\x1b[1m", "y\n", "z"]) }];
        assert!(layout(&TITLES, &rows, at(80)).ends_with("\nx [1m  y        z\n    a b\n"));
    }
}

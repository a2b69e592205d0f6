//! Tables of text. Pure: rows and a width in, text out.

use std::fmt::Write as _;

/// The space between columns.
const GAP: usize = 2;
/// The indentation of the lines below a row.
const INDENT: usize = 4;

/// The colour of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// The terminal's.
    #[default]
    Plain,
    /// Green.
    Good,
    /// Red.
    Bad,
    /// Yellow.
    Doubtful,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Good => "\x1b[32m",
            Tone::Bad => "\x1b[31m",
            Tone::Doubtful => "\x1b[33m",
        }
    }
}

/// A cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Its text, one line.
    pub text: String,
    /// Its colour.
    pub tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell { text: text.into(), tone: Tone::Plain }
    }
}

/// A row, and a text that is printed below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// One cell for each column.
    pub cells: Vec<Cell>,
    /// The text, wrapped to the width.
    pub note: Option<String>,
}

/// A column: its title, and the width to which it may shrink.
pub type Column = (&'static str, usize);

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// The width of the terminal in characters; `None` for no limit.
    pub width: Option<usize>,
    /// Whether to use colours.
    pub colours: bool,
}

/// Prints a table. If it is wider than the terminal, the widest columns shrink first.
pub fn layout(columns: &[Column], rows: &[Row], style: Style) -> String {
    let mut widths: Vec<usize> = columns.iter().map(|(title, _)| title.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(cell.text.chars().count());
        }
    }
    if let Some(limit) = style.width {
        shrink(&mut widths, columns, limit);
    }
    let titles: Vec<Cell> = columns.iter().map(|(title, _)| Cell::from(*title)).collect();
    let mut text = String::new();
    line(&mut text, &titles, &widths, Style { colours: false, ..style });
    for row in rows {
        line(&mut text, &row.cells, &widths, style);
        if let Some(note) = &row.note {
            text += &wrapped(note, INDENT, style.width);
        }
    }
    text
}

fn shrink(widths: &mut [usize], columns: &[Column], limit: usize) {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > limit {
        let can_shrink = |(index, width): &(usize, &mut usize)| **width > columns[*index].1;
        let widest = widths.iter_mut().enumerate().filter(can_shrink).max_by_key(|(_, width)| **width);
        match widest {
            Some((_, width)) => *width -= 1,
            None => break,
        }
    }
}

fn line(text: &mut String, cells: &[Cell], widths: &[usize], style: Style) {
    let mut room = style.width.unwrap_or(usize::MAX);
    let mut padding = 0;
    for (cell, width) in cells.iter().zip(widths) {
        let shown = cut(&cell.text, (*width).min(room.saturating_sub(padding)));
        let length = shown.chars().count();
        if length > 0 {
            let _ = write!(text, "{:padding$}", "");
            room = room.saturating_sub(padding + length);
            padding = 0;
            let code = if style.colours { cell.tone.code() } else { "" };
            let end = if code.is_empty() { "" } else { "\x1b[0m" };
            let _ = write!(text, "{code}{shown}{end}");
        }
        padding += width - length.min(*width) + GAP;
    }
    text.push('\n');
}

/// The text, with an ellipsis in place of what exceeds the width.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() {
        length if length <= width => text.to_owned(),
        _ if width == 0 => String::new(),
        _ => text.chars().take(width - 1).chain(['…']).collect(),
    }
}

/// Indented lines that are no longer than the width. A longer word is cut.
pub fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let room = width.unwrap_or(usize::MAX).saturating_sub(indent).max(1);
    let (mut lines, mut line) = (String::new(), String::new());
    let mut flush = |line: &mut String| {
        let _ = writeln!(lines, "{:indent$}{line}", "");
        line.clear();
    };
    for word in text.split(' ') {
        let length = word.chars().count();
        if !line.is_empty() && line.chars().count() + 1 + length > room {
            flush(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += &cut(word, room);
    }
    flush(&mut line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [("POD", 6), ("ADDRESS", 9), ("STATE", 5)];

    fn row(cells: [&str; 3]) -> Row {
        Row { cells: cells.map(Cell::from).into(), note: None }
    }

    fn at(width: usize) -> Style {
        Style { width: Some(width), colours: false }
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_blanks_at_the_end() {
        let rows = [row(["shop/web-0", "10.1.0.2", "alive"]), row(["x", "", ""])];
        let text = layout(&COLUMNS, &rows, at(80));
        assert_eq!(text, "POD         ADDRESS   STATE\nshop/web-0  10.1.0.2  alive\nx\n");
        assert_eq!(layout(&COLUMNS, &rows, Style::default()), text);
    }

    #[test]
    fn the_widest_column_shrinks_and_no_line_exceeds_the_width() {
        let rows = [row(["a-namespace/a-pod-with-a-long-name", "2001:db8:1:2:3:4:5:6", "alive"])];
        let text = layout(&COLUMNS, &rows, at(40));
        assert!(text.contains("…") && text.contains("alive"), "{text}");
        for width in [5, 10, 22, 30, 80, 200] {
            for line in layout(&COLUMNS, &rows, at(width)).lines() {
                assert!(line.chars().count() <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn colours_do_not_count_for_the_width() {
        let alive = Cell { text: "alive".into(), tone: Tone::Good };
        let rows = [Row { cells: vec!["x".into(), alive, "y".into()], note: None }];
        let text = layout(&COLUMNS, &rows, Style { width: Some(80), colours: true });
        assert!(text.ends_with("x    \x1b[32malive\x1b[0m    y\n"), "{text:?}");
    }

    #[test]
    fn notes_are_wrapped() {
        let rows = [Row { note: Some("no cache entry, no process".into()), ..row(["x", "y", "z"]) }];
        let text = layout(&COLUMNS, &rows, at(24));
        assert!(text.ends_with("\n    no cache entry, no\n    process\n"), "{text:?}");
        assert_eq!(wrapped("0123456789", 2, Some(6)), "  012…\n");
    }
}

//! A table as text or Markdown.

use std::fmt::Write as _;

/// Rows of cells below a head. The first columns are text, the others are numbers.
pub(crate) struct Table {
    words: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head, whose first `words` columns are text.
    pub(crate) fn new(words: usize, head: impl Into<Vec<String>>) -> Table {
        Table { words, rows: vec![head.into()] }
    }

    /// Adds a row with as many cells as the head.
    pub(crate) fn push(&mut self, row: impl Into<Vec<String>>) {
        self.rows.push(row.into());
    }

    pub(crate) fn render(&self, markdown: bool) -> String {
        if markdown { self.as_markdown() } else { self.as_text() }
    }

    fn as_text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(text, "{cell:width$}"),
                    _ if column < self.words => write!(text, "  {cell:width$}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    fn as_markdown(&self) -> String {
        let mut text = String::new();
        for (position, row) in self.rows.iter().enumerate() {
            let _ = writeln!(text, "| {} |", row.join(" | "));
            if position == 0 {
                let numbers = row.len().saturating_sub(self.words);
                text += &format!("|{}{}\n", "---|".repeat(self.words), "---:|".repeat(numbers));
            }
        }
        text
    }
}

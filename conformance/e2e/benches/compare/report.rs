//! The results as a table with a summary.

use std::fmt::Write as _;

use crate::runner::{Outcome, Row};
use crate::side::Side;
use crate::stats::{Series, geometric_mean};

const HEAD: [&str; 13] = [
    "case", "verb", "ours ms", "p95", "Go ms", "p95", "Go/ours", "CPU ms", "Go", "Go/ours", "RSS MB", "Go",
    "Go/ours",
];
/// The number of text columns, which come before the columns of numbers.
const WORDS: usize = 2;

/// All results.
#[derive(Default)]
pub(crate) struct Report {
    outcomes: Vec<Outcome>,
    notes: Vec<String>,
    failures: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn failure(&mut self, failure: String) {
        self.failures.push(failure);
    }

    pub(crate) fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The whole report.
    pub(crate) fn render(&self, sides: &[Side; 2], iterations: u32, markdown: bool) -> String {
        let [ours, reference] = sides;
        let (ours, reference) = (ours.dir.display(), reference.dir.display());
        let mut text =
            format!("ours: {ours}, Go: {reference}; {iterations} calls each, in turns; medians\n\n");
        let mut table = vec![HEAD.map(str::to_owned)];
        for outcome in &self.outcomes {
            table.extend(outcome.rows.iter().map(|row| cells(&outcome.case, row)));
            if outcome.kernel.median().is_some() {
                table.push(kernel_cells(&outcome.kernel));
            }
        }
        text += &if markdown { as_markdown(&table) } else { as_text(&table) };
        text.push('\n');
        for line in self.summary().iter().chain(&self.notes).chain(&self.failures) {
            let _ = writeln!(text, "{}{line}", if markdown { "- " } else { "" });
        }
        text
    }

    fn summary(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let rows: Vec<&Row> = self.outcomes.iter().flat_map(|outcome| &outcome.rows).collect();
        let rows: Vec<&Row> = rows.into_iter().filter(|row| matches!(row.verb, "ADD" | "CHECK")).collect();
        let ratios = |value: fn(&Row) -> Option<f64>| rows.iter().filter_map(|row| value(row)).collect();
        let columns = [("wall", wall_ratio as fn(&Row) -> _), ("CPU", cpu_ratio), ("RSS", memory_ratio)];
        let columns: Vec<String> =
            columns.into_iter().filter_map(|(name, value)| spread(name, ratios(value))).collect();
        if !columns.is_empty() {
            let columns = columns.join(", ");
            lines.push(format!(
                "Go/ours in the {} rows of ADD and CHECK, geometric mean: {columns}",
                rows.len()
            ));
        }
        for outcome in &self.outcomes {
            lines.extend(beside_kernel(outcome));
        }
        lines
    }
}

/// The geometric mean with the smallest and the largest ratio, since a few extreme rows change it.
fn spread(name: &str, mut ratios: Vec<f64>) -> Option<String> {
    ratios.sort_by(f64::total_cmp);
    let (mean, least, most) = (geometric_mean(&ratios)?, ratios.first()?, ratios.last()?);
    Some(format!("{name} {mean:.1} ({least:.1} to {most:.1})"))
}

/// The time of a case's DEL relative to the time that the kernel needs to remove the links.
fn beside_kernel(outcome: &Outcome) -> Option<String> {
    let kernel = outcome.kernel.median()?;
    let del = outcome.rows.iter().find(|row| row.verb == "DEL")?;
    let [ours, reference] = &del.figures;
    let (ours, reference) = (ours.wall.median()? / kernel, reference.wall.median()? / kernel);
    let case = &outcome.case;
    Some(format!(
        "{case}, DEL beside the kernel's removal of the links: ours {ours:.2} times, Go {reference:.2} times"
    ))
}

fn wall_ratio(row: &Row) -> Option<f64> {
    let [ours, reference] = &row.figures;
    ratio(reference.wall.median()?, ours.wall.median()?)
}

fn cpu_ratio(row: &Row) -> Option<f64> {
    let [ours, reference] = &row.figures;
    ratio(reference.cpu.median()?, ours.cpu.median()?)
}

fn memory_ratio(row: &Row) -> Option<f64> {
    let [ours, reference] = &row.figures;
    ratio(megabytes(reference.memory), megabytes(ours.memory))
}

fn ratio(reference: f64, ours: f64) -> Option<f64> {
    (reference > 0.0 && ours > 0.0).then(|| reference / ours)
}

fn megabytes(kib: u64) -> f64 {
    // Exact: far below 2^53.
    kib as f64 / 1024.0
}

fn cells(case: &str, row: &Row) -> [String; HEAD.len()] {
    let [ours, reference] = &row.figures;
    [
        case.to_owned(),
        row.verb.to_owned(),
        number(ours.wall.median()),
        number(ours.wall.p95()),
        number(reference.wall.median()),
        number(reference.wall.p95()),
        times(wall_ratio(row)),
        number(ours.cpu.median()),
        number(reference.cpu.median()),
        times(cpu_ratio(row)),
        format!("{:.1}", megabytes(ours.memory)),
        format!("{:.1}", megabytes(reference.memory)),
        times(memory_ratio(row)),
    ]
}

fn kernel_cells(kernel: &Series) -> [String; HEAD.len()] {
    let mut cells = [const { String::new() }; HEAD.len()];
    cells[0] = "kernel: remove veth".to_owned();
    cells[2] = number(kernel.median());
    cells[3] = number(kernel.p95());
    cells
}

fn number(milliseconds: Option<f64>) -> String {
    milliseconds.map(|value| format!("{value:.2}")).unwrap_or_default()
}

fn times(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{ratio:.1}")).unwrap_or_default()
}

fn as_text(table: &[[String; HEAD.len()]]) -> String {
    let width = |column: usize| table.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut text = String::new();
    for row in table {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:width$}"),
                _ if column < WORDS => write!(text, "  {cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn as_markdown(table: &[[String; HEAD.len()]]) -> String {
    let mut text = String::new();
    for (position, row) in table.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if position == 0 {
            text += &format!("|{}{}\n", "---|".repeat(WORDS), "---:|".repeat(HEAD.len() - WORDS));
        }
    }
    text
}

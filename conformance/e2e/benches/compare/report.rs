//! The results as a table with a summary.

use std::fmt::Write as _;

use crate::runner::{Figures, Outcome, Row};
use crate::side::Side;
use crate::stats::{Series, geometric_mean};
use crate::table::Table;

/// Ours is the first side.
const OURS: usize = 0;
const REFERENCE: usize = 1;

const COLUMNS: usize = 15;
/// The number of text columns, which come before the columns of numbers.
const WORDS: usize = 2;

type Cells = [String; COLUMNS];

/// The head of a table that compares ours with another side.
fn head(other: &str) -> Cells {
    let ratio = format!("{other}/ours");
    let milliseconds = format!("{other} ms");
    [
        "case",
        "verb",
        "ours ms",
        "p95",
        &milliseconds,
        "p95",
        &ratio,
        "CPU ms",
        other,
        &ratio,
        "RSS MB",
        other,
        &ratio,
        "faults",
        other,
    ]
    .map(str::to_owned)
}

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
    pub(crate) fn render(&self, sides: &[Side], iterations: u32, markdown: bool) -> String {
        let folders: Vec<String> =
            sides.iter().map(|side| format!("{}: {}", side.label, side.dir.display())).collect();
        let mut text = format!("{}; {iterations} calls each, in turns; medians\n\n", folders.join(", "));
        for (other, side) in sides.iter().enumerate().skip(REFERENCE) {
            let table = self.table(other, &side.label);
            text += &table.render(markdown);
            text.push('\n');
        }
        let others = sides.iter().enumerate().skip(REFERENCE + 1);
        let others = others.filter_map(|(other, side)| self.ratios(&side.label, other));
        let lines = self.summary().into_iter().chain(others);
        for line in lines.chain(self.notes.clone()).chain(self.failures.clone()) {
            let _ = writeln!(text, "{}{line}", if markdown { "- " } else { "" });
        }
        text
    }

    fn table(&self, other: usize, name: &str) -> Table {
        let mut table = Table::new(WORDS, head(name));
        for outcome in &self.outcomes {
            for row in &outcome.rows {
                table.push(cells(&outcome.case, row, other));
                empty_cells(&row.empty).into_iter().for_each(|cells| table.push(cells));
            }
            kernel_cells(&outcome.kernel).into_iter().for_each(|cells| table.push(cells));
        }
        table
    }

    fn summary(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.ratios("Go", REFERENCE).into_iter().collect();
        for outcome in &self.outcomes {
            lines.extend(beside_kernel(outcome));
            lines.extend(outcome.rows.iter().filter_map(|row| beside_empty(&outcome.case, row)));
        }
        lines
    }

    fn ratios(&self, name: &str, other: usize) -> Option<String> {
        let rows: Vec<&Row> = self.outcomes.iter().flat_map(|outcome| &outcome.rows).collect();
        let rows: Vec<&Row> = rows.into_iter().filter(|row| matches!(row.verb, "ADD" | "CHECK")).collect();
        let ratios =
            |value: fn(&Row, usize) -> Option<f64>| rows.iter().filter_map(|row| value(row, other)).collect();
        let columns =
            [("wall", wall_ratio as fn(&Row, usize) -> _), ("CPU", cpu_ratio), ("RSS", memory_ratio)];
        let columns: Vec<String> =
            columns.into_iter().filter_map(|(name, value)| spread(name, ratios(value))).collect();
        let means = format!("{name}/ours in the {} rows of ADD and CHECK, geometric mean: ", rows.len());
        (!columns.is_empty()).then(|| means + &columns.join(", "))
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
    let [ours, reference] = [OURS, REFERENCE].map(|side| Some(wall(del, side)? / kernel));
    let (ours, reference, case) = (ours?, reference?, &outcome.case);
    Some(format!(
        "{case}, DEL beside the kernel's removal of the links: ours {ours:.2} times, Go {reference:.2} times"
    ))
}

fn beside_empty(case: &str, row: &Row) -> Option<String> {
    let empty = row.empty.wall.median()?;
    let [ours, reference] = [OURS, REFERENCE].map(|side| Some(wall(row, side)? / empty));
    let (verb, ours, reference) = (row.verb, ours?, reference?);
    Some(format!(
        "{case}, {verb} beside a static Rust program with an empty main: ours {ours:.2} times, Go {reference:.2} times"
    ))
}

fn wall(row: &Row, side: usize) -> Option<f64> {
    row.figures.get(side)?.wall.median()
}

fn wall_ratio(row: &Row, other: usize) -> Option<f64> {
    ratio(wall(row, other)?, wall(row, OURS)?)
}

fn cpu_ratio(row: &Row, other: usize) -> Option<f64> {
    let cpu = |side: usize| row.figures.get(side)?.cpu.median();
    ratio(cpu(other)?, cpu(OURS)?)
}

fn memory_ratio(row: &Row, other: usize) -> Option<f64> {
    let memory = |side: usize| Some(megabytes(row.figures.get(side)?.memory));
    ratio(memory(other)?, memory(OURS)?)
}

fn ratio(reference: f64, ours: f64) -> Option<f64> {
    (reference > 0.0 && ours > 0.0).then(|| reference / ours)
}

fn megabytes(kib: u64) -> f64 {
    // Exact: far below 2^53.
    kib as f64 / 1024.0
}

fn cells(case: &str, row: &Row, other: usize) -> Cells {
    let wall = |side: usize| row.figures.get(side).map(|figures| &figures.wall);
    let median = |side: usize| number(wall(side).and_then(Series::median));
    let p95 = |side: usize| number(wall(side).and_then(Series::p95));
    let cpu = |side: usize| number(row.figures.get(side).and_then(|figures| figures.cpu.median()));
    let memory = |side: usize| {
        row.figures.get(side).map(|figures| format!("{:.1}", megabytes(figures.memory))).unwrap_or_default()
    };
    let faults = |side: usize| row.figures.get(side).map(fault_count).unwrap_or_default();
    [
        case.to_owned(),
        row.verb.to_owned(),
        median(OURS),
        p95(OURS),
        median(other),
        p95(other),
        times(wall_ratio(row, other)),
        cpu(OURS),
        cpu(other),
        times(cpu_ratio(row, other)),
        memory(OURS),
        memory(other),
        times(memory_ratio(row, other)),
        faults(OURS),
        faults(other),
    ]
}

fn fault_count(figures: &Figures) -> String {
    figures.faults.median().map(|count| count.to_string()).unwrap_or_default()
}

/// A row for something that is no side, in the columns of ours.
fn other_cells(name: &str, wall: &Series) -> Option<Cells> {
    let mut cells = [const { String::new() }; COLUMNS];
    cells[0] = name.to_owned();
    cells[2] = number(Some(wall.median()?));
    cells[3] = number(wall.p95());
    Some(cells)
}

fn kernel_cells(kernel: &Series) -> Option<Cells> {
    other_cells("kernel: remove veth", kernel)
}

fn empty_cells(empty: &Figures) -> Option<Cells> {
    let mut cells = other_cells("an empty static program", &empty.wall)?;
    cells[7] = number(empty.cpu.median());
    cells[13] = fault_count(empty);
    Some(cells)
}

fn number(milliseconds: Option<f64>) -> String {
    milliseconds.map(|value| format!("{value:.2}")).unwrap_or_default()
}

fn times(ratio: Option<f64>) -> String {
    ratio
        .map(|ratio| if ratio < 10.0 { format!("{ratio:.2}") } else { format!("{ratio:.1}") })
        .unwrap_or_default()
}

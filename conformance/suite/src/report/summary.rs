//! Counts of verdicts by plugin and section.

use std::fmt;

use crate::requirements::SECTIONS;
use crate::run::{Ended, Verdict};

/// How many test runs ended with which verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed.
    pub pass: usize,
    /// Failed, or could not be judged because the suite or the machine failed.
    pub fail: usize,
    /// Violated a SHOULD or CONVENTION.
    pub warn: usize,
    /// Differed from a MAY or REFERENCE.
    pub note: usize,
    /// Failed as the file of known deviations lists.
    pub known: usize,
    /// Skipped.
    pub skip: usize,
}

impl Counts {
    /// The counts of these test runs.
    pub fn of<'e, 'a: 'e>(ended: impl IntoIterator<Item = &'e Ended<'a>>) -> Counts {
        let mut counts = Counts::default();
        for end in ended {
            *match end.verdict {
                Verdict::Pass => &mut counts.pass,
                Verdict::Fail(_) | Verdict::Broken(_) => &mut counts.fail,
                Verdict::Warn(_) => &mut counts.warn,
                Verdict::Note(_) => &mut counts.note,
                Verdict::Known(..) => &mut counts.known,
                Verdict::Skip(_) => &mut counts.skip,
            } += 1;
        }
        counts
    }

    /// Each count with its word; always `passed` and `failed`, the others only if not 0.
    pub fn named(self) -> impl Iterator<Item = (&'static str, usize)> {
        [
            ("passed", self.pass),
            ("failed", self.fail),
            ("known", self.known),
            ("warned", self.warn),
            ("noted", self.note),
            ("skipped", self.skip),
        ]
        .into_iter()
        .filter(|(word, count)| *count > 0 || matches!(*word, "passed" | "failed"))
    }

    fn tried(self) -> usize {
        self.pass + self.fail + self.warn + self.note + self.known
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.named().map(|(word, count)| format!("{count} {word}")).collect();
        f.pad(&parts.join(", "))
    }
}

/// A table of verdicts: one row per section, one column per plugin.
#[derive(Debug)]
pub struct Summary {
    /// The plugins.
    pub plugins: Vec<String>,
    /// For each section with test runs its title and the counts of each plugin.
    pub rows: Vec<(&'static str, Vec<Counts>)>,
    /// The counts of all test runs of each plugin.
    pub totals: Vec<Counts>,
}

impl Summary {
    /// The table of these test runs.
    pub fn of(ended: &[Ended<'_>]) -> Summary {
        let mut plugins: Vec<String> = Vec::new();
        for end in ended {
            if plugins.last() != Some(&end.run.plugin.name) {
                plugins.push(end.run.plugin.name.clone());
            }
        }
        let of = |plugin: &str, slug: Option<&str>| {
            Counts::of(ended.iter().filter(|end| {
                end.run.plugin.name == plugin && slug.is_none_or(|slug| end.run.entry.section.slug == slug)
            }))
        };
        let rows = SECTIONS
            .iter()
            .map(|section| {
                (
                    section.title,
                    plugins.iter().map(|plugin| of(plugin, Some(section.slug))).collect::<Vec<_>>(),
                )
            })
            .filter(|(_, cells)| cells.iter().any(|cell| *cell != Counts::default()))
            .collect();
        let totals = plugins.iter().map(|plugin| of(plugin, None)).collect();
        Summary { plugins, rows, totals }
    }

    /// The table as text with header and totals. A cell is empty if the plugin has no test run in the
    /// section.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let row = |title: &str, counts: &[Counts]| {
            std::iter::once(title.to_owned()).chain(counts.iter().map(|counts| cell(*counts))).collect()
        };
        let mut cells = vec![std::iter::once(String::new()).chain(self.plugins.iter().cloned()).collect()];
        cells.extend(self.rows.iter().map(|(title, counts)| row(title, counts)));
        cells.push(row("all", &self.totals));
        cells
    }
}

/// Passed and total, such as `12/12`, followed by the other counts that are not 0.
fn cell(counts: Counts) -> String {
    if counts == Counts::default() {
        return String::new();
    }
    if counts.tried() == 0 {
        return "skipped".to_owned();
    }
    let mut cell = format!("{}/{}", counts.pass, counts.tried());
    for (word, count) in
        [("failed", counts.fail), ("known", counts.known), ("warned", counts.warn), ("noted", counts.note)]
    {
        if count > 0 {
            cell += &format!(" {count} {word}");
        }
    }
    cell
}

//! The report as Markdown.

use std::fmt::Write as _;

use super::summary::{Counts, Summary};
use crate::run::{Ended, Verdict};

pub(super) fn report(ended: &[Ended<'_>], unmet: &[String]) -> String {
    let mut text = String::new();
    for (number, row) in Summary::of(ended).cells().iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if number == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
    let _ = writeln!(text, "\n{}\n", Counts::of(ended));
    let mut failures = ended.iter().filter_map(|end| Some((end, end.verdict.mismatch()?))).peekable();
    if failures.peek().is_some() {
        text += "| verdict | plugin | test case | CNI | expected | seen |\n|---|---|---|---|---|---|\n";
    }
    for (end, mismatch) in failures {
        let reason = match &end.verdict {
            Verdict::Known(_, reason) => format!(" ({reason})"),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "| {}{} | {} | {} | {} | {} | {} |",
            end.verdict.word(),
            cell(&reason),
            end.run.plugin.name,
            end.run.test_case.id(),
            end.run.version,
            cell(&mismatch.expected),
            cell(&mismatch.seen)
        );
    }
    for line in unmet {
        let _ = writeln!(text, "\nNo failure matched this line of the known deviations: {line}");
    }
    text
}

/// Text for one cell of a table, cut after 300 characters.
pub(super) fn cell(text: &str) -> String {
    let short: String = text.chars().take(300).collect();
    short.replace('|', "\\|").replace('\n', " ")
}

//! The report for a terminal.

use std::fmt::Write as _;

use super::summary::{Counts, Summary};
use crate::run::{Ended, Verdict};

/// The maximum width of a table in columns.
const WIDTH: usize = 120;

pub(super) fn report(ended: &[Ended<'_>], unmet: &[String]) -> String {
    let mut text = table(&Summary::of(ended).cells());
    for end in ended
        .iter()
        .filter(|end| !matches!(end.verdict, Verdict::Pass | Verdict::Skip(_) | Verdict::Known(..)))
    {
        text += &one(end);
    }
    text += &skips(ended);
    for line in unmet {
        let _ = writeln!(text, "\nNo failure matched this line of the known deviations: {line}");
    }
    let _ = writeln!(text, "\n{}", Counts::of(ended));
    text
}

/// The table, split into as many parts as needed to keep each within [`WIDTH`].
fn table(cells: &[Vec<String>]) -> String {
    let columns = cells.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    let mut first = 1;
    while first < columns {
        let mut width = widths[0];
        let fits = widths[first..].iter().take_while(|next| {
            width += *next + 2;
            width <= WIDTH
        });
        let last = first + fits.count().max(1);
        for row in cells {
            let shown = std::iter::once(0).chain(first..last);
            let padded: Vec<String> =
                shown.map(|column| format!("{:<width$}", row[column], width = widths[column])).collect();
            let _ = writeln!(text, "{}", padded.join("  ").trim_end());
        }
        text += if last < columns { "\n" } else { "" };
        first = last;
    }
    text
}

/// One test run that did not pass: the requirement and its source, the expected and the actual behaviour, and
/// the command that repeats it.
fn one(end: &Ended<'_>) -> String {
    let (run, requirement) = (end.run, end.run.entry.requirement);
    let mut text = format!(
        "\n{} {} {} (CNI {})\n",
        end.verdict.word().to_uppercase(),
        run.plugin.name,
        run.test_case.id(),
        run.version
    );
    let mut line = |title: &str, content: &str| {
        let _ = writeln!(text, "  {title:<9} {}", content.replace('\n', "\n            "));
    };
    line(&requirement.level.to_string().to_lowercase(), requirement.says);
    line("source", requirement.source);
    if let Verdict::Broken(why) = &end.verdict {
        line("error", &format!("the suite or the machine failed: {why}"));
    }
    if let Some(mismatch) = end.verdict.mismatch() {
        line("expected", &mismatch.expected);
        line("seen", &mismatch.seen);
        if let Some(call) = &mismatch.call {
            line("the call", call);
        }
    }
    line("again", &again(end));
    text
}

/// The command that repeats this test run.
pub(super) fn again(end: &Ended<'_>) -> String {
    let run = end.run;
    let describe = run.plugin.description.file.as_ref();
    let describe = describe.map_or_else(String::new, |file| format!(" --describe {}", file.display()));
    format!(
        "cni-conformance run --bin-dir {} --plugin {}{describe} --cni-version {} --filter {}",
        run.plugin.dir.display(),
        run.plugin.name,
        run.version,
        run.test_case.id()
    )
}

/// The reasons for skipped test runs, each with its count.
fn skips(ended: &[Ended<'_>]) -> String {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for end in ended {
        let Verdict::Skip(why) = &end.verdict else { continue };
        match reasons.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    let mut text = String::new();
    for (reason, count) in reasons {
        let _ = writeln!(text, "\nSkipped {count}: {reason}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_is_split() {
        let wide = "x".repeat(60);
        let row = |first: &str| vec![first.to_owned(), wide.clone(), "y".to_owned(), wide.clone()];
        let text = table(&[row(""), row("a")]);
        assert!(text.lines().all(|line| line.len() <= WIDTH));
        assert_eq!(text.lines().count(), 5);
        assert!(text.starts_with(&format!("   {wide}  y\na  {wide}  y\n\n")), "{text}");
    }
}

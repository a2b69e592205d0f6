//! The report as one HTML page without scripts and without files beside it.

use std::fmt::Write as _;

use super::human::again;
use super::junit::escaped;
use super::summary::{Counts, Summary};
use crate::run::{Ended, Verdict};

/// Light and dark, and wide enough for a column for each plugin of the reference.
const STYLE: &str = "
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid #8886; padding: .2rem .6rem; text-align: left; }
details { border-left: .3rem solid #8888; margin: .6rem 0; padding: 0 .8rem; }
.fail, .broken { border-color: #c33; } .warn { border-color: #c80; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }";

pub(super) fn report(ended: &[Ended<'_>], unmet: &[String]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>cni-conformance</title><style>{STYLE}\n</style></head>\n\
         <body>\n<h1>cni-conformance {}</h1>\n<p>{}</p>\n<table>\n",
        env!("CARGO_PKG_VERSION"),
        Counts::of(ended)
    );
    for (number, row) in Summary::of(ended).cells().iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        let _ = writeln!(page, "<tr>{cells}</tr>");
    }
    page += "</table>\n<h2>What did not pass</h2>\n";
    let is_shown = |end: &&Ended<'_>| !matches!(end.verdict, Verdict::Pass | Verdict::Skip(_));
    ended.iter().filter(is_shown).for_each(|end| one(end, &mut page));
    for line in unmet {
        let _ =
            writeln!(page, "<p>No failure matched this line of the known deviations: {}</p>", escaped(line));
    }
    page + "</body>\n</html>\n"
}

/// One test run: the requirement and its source, the expected and the seen behaviour, and the call.
fn one(end: &Ended<'_>, page: &mut String) {
    let (run, requirement, word) = (end.run, end.run.entry.requirement, end.verdict.word());
    let open = if matches!(end.verdict, Verdict::Fail(_) | Verdict::Broken(_)) { " open" } else { "" };
    let _ = writeln!(
        page,
        "<details class=\"{word}\"{open}><summary>{word}: {} {} (CNI {})</summary>\n<p><b>{}</b> {}</p>\n<p>{}</p>",
        escaped(&run.plugin.name),
        escaped(&run.test_case.id()),
        run.version,
        requirement.level,
        escaped(requirement.says),
        escaped(requirement.source)
    );
    let mismatch = end.verdict.mismatch();
    let reason = match &end.verdict {
        Verdict::Known(_, reason) | Verdict::Broken(reason) => Some(reason.as_str()),
        _ => None,
    };
    let again = again(end);
    let rows = [
        ("reason", reason),
        ("expected", mismatch.map(|it| it.expected.as_str())),
        ("seen", mismatch.map(|it| it.seen.as_str())),
        ("the call", mismatch.and_then(|it| it.call.as_deref())),
        ("again", Some(again.as_str())),
    ];
    for (title, text) in rows.into_iter().filter_map(|(title, text)| Some((title, text?))) {
        let _ = writeln!(page, "<p>{title}</p><pre>{}</pre>", escaped(text));
    }
    page.push_str("</details>\n");
}

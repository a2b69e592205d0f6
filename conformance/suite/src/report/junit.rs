//! The report as JUnit XML, with one suite per plugin. Warnings, notes and known failures are passed cases
//! with the text in `system-out`.

use std::fmt::Write as _;

use super::human::again;
use super::summary::{Counts, Summary};
use crate::run::{Ended, Verdict};

pub(super) fn report(ended: &[Ended<'_>]) -> String {
    let mut xml =
        String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"cni-conformance\">\n");
    for plugin in Summary::of(ended).plugins {
        let of: Vec<&Ended<'_>> = ended.iter().filter(|end| end.run.plugin.name == plugin).collect();
        let counts = Counts::of(of.iter().copied());
        let time: f64 = of.iter().map(|end| end.time.as_secs_f64()).sum();
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" time=\"{time:.3}\">",
            escaped(&plugin),
            of.len(),
            counts.fail,
            counts.skip
        );
        of.into_iter().for_each(|end| run(end, &mut xml));
        xml += "  </testsuite>\n";
    }
    xml + "</testsuites>\n"
}

fn run(end: &Ended<'_>, xml: &mut String) {
    let (run, requirement) = (end.run, end.run.entry.requirement);
    let _ = write!(
        xml,
        "    <testcase classname=\"{}.{}\" name=\"{} ({})\" time=\"{:.3}\"",
        escaped(&run.plugin.name),
        run.entry.section.slug,
        escaped(&run.test_case.id()),
        run.version,
        end.time.as_secs_f64()
    );
    let words = |reason: &str| {
        let mismatch = end.verdict.mismatch();
        let (expected, seen) = mismatch.map_or(("", reason), |mismatch| (&mismatch.expected, &mismatch.seen));
        let call = mismatch.and_then(|mismatch| mismatch.call.as_deref()).unwrap_or_default();
        escaped(&format!(
            "{} {}\n{}\nexpected: {expected}\nseen: {seen}\ncall: {call}\nagain: {}\n",
            requirement.level,
            requirement.says,
            requirement.source,
            again(end)
        ))
    };
    let body = match &end.verdict {
        Verdict::Pass => String::new(),
        Verdict::Skip(why) => format!("<skipped message=\"{}\"/>", escaped(why)),
        Verdict::Fail(mismatch) => {
            format!("<failure message=\"{}\">{}</failure>", escaped(&mismatch.seen), words(""))
        }
        Verdict::Broken(why) => {
            format!("<failure message=\"the suite or the machine failed\">{}</failure>", words(why))
        }
        Verdict::Known(_, why) => format!("<system-out>known: {}\n{}</system-out>", escaped(why), words("")),
        Verdict::Warn(_) | Verdict::Note(_) => {
            format!("<system-out>{}: {}</system-out>", end.verdict.word(), words(""))
        }
    };
    let _ = if body.is_empty() { writeln!(xml, "/>") } else { writeln!(xml, ">{body}</testcase>") };
}

/// Escapes a text for XML 1.0, which forbids most control characters, and for HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn text_is_escaped_for_xml() {
        assert_eq!(escaped("<a b=\"&\u{1b}\">"), "&lt;a b=&quot;&amp;\u{fffd}&quot;&gt;");
    }
}

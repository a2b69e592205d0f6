//! `ferrule metrics`: counts the calls that the log has got since the last run, and writes the file for Prometheus.
//!
//! The log is rotated, but counters must not decrease. So the file that the last run wrote is the state: its counters, and
//! how far it had read the log.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::file;
use indexmap::IndexMap;

use super::Call;
use super::unread::{Position, unread};
use crate::totals;

/// The upper limits of the histogram's buckets, in seconds.
const BUCKETS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 10.0];
const DURATION: &str = "ferrule_call_duration_seconds";
const ERRORS: &str = "ferrule_errors_total";
const POSITION: &str = "# position ";

/// Counters since the first run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// The values by name with labels, in the order of their first call.
    counters: IndexMap<String, f64>,
    /// The part of the log that they include.
    pub position: Position,
}

impl Metrics {
    /// Counts a call.
    pub fn add(&mut self, call: &Call) {
        let mut add = |counter: String, value: f64| *self.counters.entry(counter).or_default() += value;
        let labels =
            format!("plugin=\"{}\",verb=\"{}\"", label(call.text("plugin")), label(call.text("verb")));
        if let Some((code, _)) = call.error() {
            add(format!("{ERRORS}{{{labels},code=\"{code}\"}}"), 1.0);
        }
        let outcome = if call.error().is_some() { "error" } else { "success" };
        let labels = format!("{labels},outcome=\"{outcome}\"");
        let seconds = Duration::from_micros(call.micros()).as_secs_f64();
        for limit in BUCKETS {
            let is_in = u8::from(seconds <= limit);
            add(format!("{DURATION}_bucket{{{labels},le=\"{limit}\"}}"), is_in.into());
        }
        add(format!("{DURATION}_bucket{{{labels},le=\"+Inf\"}}"), 1.0);
        add(format!("{DURATION}_sum{{{labels}}}"), seconds);
        add(format!("{DURATION}_count{{{labels}}}"), 1.0);
    }

    /// Reads the text that [`Metrics::text`] wrote. Skips other lines.
    pub fn parse(text: &str) -> Self {
        let mut metrics = Metrics::default();
        for line in text.lines() {
            if let Some(position) = line.strip_prefix(POSITION).and_then(Position::parse) {
                metrics.position = position;
            } else if let Some((counter, value)) = line.rsplit_once(' ')
                && (counter.starts_with(DURATION) || counter.starts_with(ERRORS))
                && let Ok(value) = value.parse()
            {
                metrics.counters.insert(counter.to_owned(), value);
            }
        }
        metrics
    }

    /// The text for Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, kind, help) in [
            (DURATION, "histogram", "How long the calls of the CNI plugins took."),
            (ERRORS, "counter", "The calls that failed, by the code of the CNI error."),
        ] {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (counter, value) in self.counters.iter().filter(|(counter, _)| counter.starts_with(name)) {
                // As many digits as the log has.
                let value = (value * 1e6).round() / 1e6;
                let _ = writeln!(text, "{counter} {value}");
            }
        }
        text + &format!("{POSITION}{}\n", self.position)
    }
}

/// A text that needs no quotation in a label.
fn label(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(64).collect()
}

/// Returns the text. Writes it to `output`, which is also the state; without it, counts the whole log.
///
/// # Errors
/// The log cannot be read, or the file cannot be written.
pub fn export(log: &Path, output: Option<&Path>) -> Result<String, CniError> {
    let earlier = output.and_then(|path| file::read_text(path).ok()).unwrap_or_default();
    let mut metrics = Metrics::parse(&earlier);
    unread(log, &mut metrics.position)?.iter().for_each(|call| metrics.add(call));
    let text = metrics.text() + &totals::read().context(|| "cannot read the totals of gc and repair")?;
    if let Some(path) = output {
        file::replace(path, &file::pending_beside(path), 0o644, text.as_bytes())
            .context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor};

    use super::super::read::parse;
    use super::super::unread::of_files;
    use super::*;

    const LOG: &str = r#"{"plugin":"bridge","verb":"ADD","us":2500}
{"plugin":"bridge","verb":"ADD","us":20000000,"error":{"code":7,"msg":""}}
{"plugin":"tap","verb":"D\"EL","us":1}
"#;

    #[test]
    fn counters_survive_the_text() {
        let mut metrics =
            Metrics { position: Position { offset: 99, head: "{\"a b".into() }, ..Metrics::default() };
        parse(LOG.as_bytes()).iter().for_each(|call| metrics.add(call));
        let text = metrics.text();
        for line in [
            "# TYPE ferrule_call_duration_seconds histogram",
            r#"ferrule_call_duration_seconds_bucket{plugin="bridge",verb="ADD",outcome="success",le="0.001"} 0"#,
            r#"ferrule_call_duration_seconds_bucket{plugin="bridge",verb="ADD",outcome="success",le="0.0025"} 1"#,
            r#"ferrule_call_duration_seconds_bucket{plugin="bridge",verb="ADD",outcome="error",le="10"} 0"#,
            r#"ferrule_call_duration_seconds_bucket{plugin="bridge",verb="ADD",outcome="error",le="+Inf"} 1"#,
            r#"ferrule_call_duration_seconds_sum{plugin="bridge",verb="ADD",outcome="error"} 20"#,
            r#"ferrule_call_duration_seconds_sum{plugin="tap",verb="DEL",outcome="success"} 0.000001"#,
            r#"ferrule_call_duration_seconds_count{plugin="tap",verb="DEL",outcome="success"} 1"#,
            "# TYPE ferrule_errors_total counter",
            r#"ferrule_errors_total{plugin="bridge",verb="ADD",code="7"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(Metrics::parse(&text), metrics);
        let mut again = Metrics::parse(&text);
        parse(LOG.as_bytes()).iter().for_each(|call| again.add(call));
        assert!(again.text().contains(r#"_count{plugin="bridge",verb="ADD",outcome="success"} 2"#));
    }

    #[test]
    fn another_file_is_no_state() {
        for text in ["", "junk", "a{b} 1", "ferrule_errors_total{plugin=\"x\"} y", "# position x"] {
            assert_eq!(Metrics::parse(text), Metrics::default());
        }
    }

    /// A log file with a call for each letter, of a plugin of this name.
    fn file(letters: &str) -> Option<Cursor<String>> {
        let call = |letter| {
            format!(
                "{{\"time\":\"2026-11-22T09:55:00.00000{letter}Z\",\"plugin\":\"{letter}\",\"verb\":\"ADD\",\"us\":1}}\n"
            )
        };
        Some(Cursor::new(letters.chars().map(call).collect()))
    }

    fn count<F: io::Read + io::Seek>(metrics: &mut Metrics, former: Option<F>, current: Option<F>) {
        let calls = of_files(&mut metrics.position, former, current).unwrap();
        calls.iter().for_each(|call| metrics.add(call));
    }

    type Files = (Option<Cursor<String>>, Option<Cursor<String>>);

    /// Rotation, removal and late writers between two runs do not matter.
    #[test]
    fn a_call_is_counted_once() {
        let cases: [(&[Files], &str); 7] = [
            (&[(None, file("ab")), (None, file("abc"))], "abc"),
            (&[(file("ab"), file("c")), (file("ab"), file("cd"))], "abcd"),
            (&[(None, file("a")), (file("ab"), file("c")), (file("cd"), file("e"))], "abcde"),
            (&[(None, file("ab")), (file("ab"), None), (file("ab"), file("c"))], "abc"),
            (&[(file("ab"), file("ab"))], "ab"),
            (&[(None, file("ab")), (file("cd"), file("e"))], "abcde"),
            (&[(None, file("")), (None, None), (None, file("a"))], "a"),
        ];
        for (runs, counted) in cases {
            let mut metrics = Metrics::default();
            for (former, current) in runs {
                count(&mut metrics, former.clone(), current.clone());
                metrics = Metrics::parse(&metrics.text());
            }
            let mut expected = Metrics::default();
            count(&mut expected, None, file(counted));
            expected.position = metrics.position.clone();
            assert_eq!(metrics.text(), expected.text(), "{counted}");
        }
    }

    #[test]
    fn an_incomplete_line_is_counted_when_it_is_complete() {
        let (mut metrics, whole) = (Metrics::default(), file("ab").unwrap().into_inner());
        let parts = [whole.len() - 3, whole.len()].map(|end| Cursor::new(whole[..end].to_owned()));
        let [partly, wholly] = parts.map(|part| {
            count(&mut metrics, None, Some(part));
            metrics.text()
        });
        assert!(!partly.contains("\"b\"") && wholly.contains("\"b\""), "{partly}{wholly}");
    }

    /// The output's folder belongs to another user.
    #[test]
    fn a_planted_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [log, output, target] = ["log", "ferrule.prom", "target"].map(|name| folder.path().join(name));
        std::fs::write(&log, LOG).unwrap();
        std::fs::write(&target, "secret").unwrap();
        for planted in [file::pending_beside(&output), output.clone()] {
            std::os::unix::fs::symlink(&target, planted).unwrap();
            export(&log, Some(&output)).unwrap();
            assert_eq!(std::fs::read_to_string(&target).unwrap(), "secret");
            assert!(file::read_text(&output).unwrap().contains("ferrule_"));
            std::fs::remove_file(&output).unwrap();
        }
    }
}

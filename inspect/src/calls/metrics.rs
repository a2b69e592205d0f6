//! The counters of `ferrule metrics`, and their text for Prometheus. Pure.
//!
//! The log is rotated, but counters must not decrease. So the file that the last run wrote is the state: its counters, and
//! how far it had read the log.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use super::Call;

/// The upper limits of the histogram's buckets, in microseconds, and as Prometheus' labels.
const BUCKETS: [(u64, &str); 9] = [
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (1_000_000, "1"),
    (10_000_000, "10"),
];
const DURATION: &str = "ferrule_call_duration_seconds";
const BUCKET: &str = "ferrule_call_duration_seconds_bucket";
const COUNT: &str = "ferrule_call_duration_seconds_count";
const SUM: &str = "ferrule_call_duration_seconds_sum";
const ERRORS: &str = "ferrule_errors_total";
const POSITION: &str = "# position ";

/// Plugin, verb, and outcome or error code.
type Key = [String; 3];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    calls: u64,
    micros: u64,
    /// The calls that are not slower than each limit.
    buckets: [u64; BUCKETS.len()],
}

/// How far the log is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// How many bytes of the file.
    pub offset: u64,
    /// How the file begins. No two log files begin with the same time.
    pub head: String,
}

/// Counters since the first run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    counts: BTreeMap<Key, Counts>,
    errors: BTreeMap<Key, u64>,
    /// The part of the log that they include.
    pub position: Position,
}

impl Metrics {
    /// Counts a call.
    pub fn add(&mut self, call: &Call) {
        let key = |last: &str| [label(call.text("plugin")), label(call.text("verb")), last.to_owned()];
        let outcome = if call.error().is_some() { "error" } else { "success" };
        if let Some((code, _)) = call.error() {
            *self.errors.entry(key(&code.to_string())).or_default() += 1;
        }
        let counts = self.counts.entry(key(outcome)).or_default();
        counts.calls += 1;
        counts.micros = counts.micros.saturating_add(call.micros());
        for (count, (limit, _)) in counts.buckets.iter_mut().zip(BUCKETS) {
            *count += u64::from(call.micros() <= limit);
        }
    }

    /// Reads the text that [`Metrics::text`] wrote. Skips other lines.
    pub fn parse(text: &str) -> Self {
        let mut metrics = Metrics::default();
        for line in text.lines() {
            match line.strip_prefix(POSITION).and_then(|rest| rest.split_once(' ')) {
                Some((offset, head)) => {
                    metrics.position =
                        Position { offset: offset.parse().unwrap_or(0), head: head.to_owned() };
                }
                None => {
                    let _ = metrics.read(line);
                }
            }
        }
        metrics
    }

    /// Reads a line `NAME{plugin="P",verb="V",outcome="O",le="L"} VALUE`; labels contain no quotation marks.
    fn read(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split('"').collect();
        let [name, plugin, _, verb, _, last, .., value] = words.as_slice() else { return None };
        let key = [plugin, verb, last].map(|word| label(word));
        let value = value.strip_prefix("} ")?;
        match name.split('{').next()? {
            COUNT => self.counts.entry(key).or_default().calls = value.parse().ok()?,
            SUM => {
                let (seconds, micros) = value.split_once('.')?;
                let [seconds, micros]: [u64; 2] = [seconds.parse().ok()?, micros.parse().ok()?];
                self.counts.entry(key).or_default().micros =
                    seconds.checked_mul(1_000_000)?.checked_add(micros)?;
            }
            BUCKET => {
                let index = BUCKETS.iter().position(|(_, le)| words.get(7) == Some(le))?;
                self.counts.entry(key).or_default().buckets[index] = value.parse().ok()?;
            }
            ERRORS => *self.errors.entry(key).or_default() = value.parse().ok()?,
            _ => {}
        }
        Some(())
    }

    /// The text for Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, labels: &str, value: &dyn Display| {
            let _ = writeln!(text, "{name}{labels} {value}");
        };
        let labels = |[plugin, verb, outcome]: &Key| {
            format!("plugin=\"{plugin}\",verb=\"{verb}\",outcome=\"{outcome}\"")
        };
        line("# HELP ", DURATION, &"How long the calls of the CNI plugins took.");
        line("# TYPE ", DURATION, &"histogram");
        for (key, counts) in &self.counts {
            let labels = labels(key);
            let limits = BUCKETS.iter().map(|(_, le)| *le).chain(["+Inf"]);
            for (le, count) in limits.zip(counts.buckets.iter().chain([&counts.calls])) {
                line(BUCKET, &format!("{{{labels},le=\"{le}\"}}"), count);
            }
            let (seconds, micros) = (counts.micros / 1_000_000, counts.micros % 1_000_000);
            line(SUM, &format!("{{{labels}}}"), &format_args!("{seconds}.{micros:06}"));
            line(COUNT, &format!("{{{labels}}}"), &counts.calls);
        }
        line("# HELP ", ERRORS, &"The calls that failed, by the code of the CNI error.");
        line("# TYPE ", ERRORS, &"counter");
        for ([plugin, verb, code], count) in &self.errors {
            line(ERRORS, &format!("{{plugin=\"{plugin}\",verb=\"{verb}\",code=\"{code}\"}}"), count);
        }
        let Position { offset, head } = &self.position;
        let _ = writeln!(text, "{POSITION}{offset} {head}");
        text
    }
}

/// A text that needs no quotation in a label.
fn label(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::super::read::parse;
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
            r#"ferrule_call_duration_seconds_sum{plugin="bridge",verb="ADD",outcome="error"} 20.000000"#,
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
        for text in ["", "junk", "a{b} 1", "ferrule_errors_total{plugin=\"x\"} 1", "# position x"] {
            assert_eq!(Metrics::parse(text), Metrics::default());
        }
    }
}

//! The text for Prometheus.

use std::fmt::{Display, Write as _};

/// The text, to which each metric is added.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What all names begin with.
    prefix: &'static str,
    text: String,
}

impl Metrics {
    /// A text without a metric.
    pub fn new(prefix: &'static str) -> Metrics {
        Metrics { prefix, text: String::new() }
    }

    /// Adds a metric, and a row for each of its label's values.
    pub fn add<L: Display, V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        label: &str,
        rows: impl IntoIterator<Item = (L, V)>,
    ) {
        let name = self.describe(name, kind, help);
        for (value, figure) in rows {
            let _ = writeln!(self.text, "{name}{{{label}=\"{value}\"}} {figure}");
        }
    }

    /// Adds a metric, and a row for each list of values of these labels. A value may have any text.
    pub fn add_labelled<const N: usize>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        labels: [&str; N],
        rows: impl IntoIterator<Item = ([String; N], u64)>,
    ) {
        let name = self.describe(name, kind, help);
        for (values, figure) in rows {
            let escaped =
                values.map(|value| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
            let pairs: Vec<String> = { labels.iter().zip(&escaped) }
                .map(|(label, value)| format!("{label}=\"{value}\""))
                .collect();
            let _ = writeln!(self.text, "{name}{{{}}} {figure}", pairs.join(","));
        }
    }

    /// Adds a metric without a label.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, figure: impl Display) {
        let name = self.describe(name, kind, help);
        let _ = writeln!(self.text, "{name} {figure}");
    }

    fn describe(&mut self, name: &str, kind: &str, help: &str) -> String {
        let name = format!("{}{name}", self.prefix);
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        name
    }

    /// The text.
    pub fn text(self) -> String {
        self.text
    }
}

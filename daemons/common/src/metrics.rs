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

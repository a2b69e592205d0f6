//! How a run is told: to a person, to a program, to a CI server, in a document.

mod document;
mod human;
mod json;
mod junit;
mod markdown;
mod summary;

pub use document::document;
pub use summary::{Counts, Summary};

use super::run::Ended;

/// A form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A table and every failure, for a terminal.
    Human,
    /// One object.
    Json,
    /// The XML that CI servers read.
    Junit,
    /// A table and every failure, for a document.
    Markdown,
}

/// Writes a report. `unmet` are the lines of known deviations that nothing has met.
pub fn report(format: Format, ended: &[Ended<'_>], unmet: &[String]) -> String {
    match format {
        Format::Human => human::report(ended, unmet),
        Format::Json => json::report(ended, unmet),
        Format::Junit => junit::report(ended),
        Format::Markdown => markdown::report(ended, unmet),
    }
}

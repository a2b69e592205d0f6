//! Reports of a run, in five formats.

mod document;
mod html;
mod human;
mod json;
mod junit;
mod markdown;
mod summary;

pub use document::document;
pub use summary::{Counts, Summary};

use super::run::Ended;

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A table and every failure, for a terminal.
    Human,
    /// One HTML page, for people who get it from a CI server.
    Html,
    /// One JSON object.
    Json,
    /// JUnit XML, for CI servers.
    Junit,
    /// A table and every failure, as Markdown.
    Markdown,
}

/// Writes a report. `unmet` are the lines of known deviations that no failure matched.
pub fn report(format: Format, ended: &[Ended<'_>], unmet: &[String]) -> String {
    match format {
        Format::Human => human::report(ended, unmet),
        Format::Html => html::report(ended, unmet),
        Format::Json => json::report(ended, unmet),
        Format::Junit => junit::report(ended),
        Format::Markdown => markdown::report(ended, unmet),
    }
}

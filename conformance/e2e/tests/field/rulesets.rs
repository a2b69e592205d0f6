//! Rulesets that other software saves, restores, flushes or edits.

use super::Report;

pub(crate) fn reports() -> Vec<Report> {
    Vec::new()
}

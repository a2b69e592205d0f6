//! The table of requirements as a document.

use std::fmt::Write as _;

use super::markdown::cell;
use crate::suite::catalog::entries;
use crate::suite::requirements::SECTIONS;

/// `REQUIREMENTS.md`.
pub fn document() -> String {
    let mut text = String::from(
        "# What is demanded of a CNI plugin\n\n\
         Written by `cni-conformance list --format markdown`; the source is `src/suite/requirements/`.\n\n\
         MUST, SHOULD and MAY are the specification's; CONVENTION is its document CONVENTIONS; INTEROP is what a caller in \
         wide use needs though no text demands it; REFERENCE is what the Go plugins do beyond that. A failed MUST or INTEROP \
         is a failure, a failed SHOULD or CONVENTION a warning, the rest is noted.\n",
    );
    for section in SECTIONS {
        let _ = writeln!(
            text,
            "\n## {}\n\n| ID | level | versions | requirement | source | trials |",
            section.title
        );
        text += "|---|---|---|---|---|---|\n";
        for entry in entries().filter(|entry| entry.section.slug == section.slug) {
            let requirement = entry.requirement;
            let names: Vec<&str> = entry.test_cases().map(|case| case.name).collect();
            let shown = match requirement.unproven {
                Some(why) => format!("none: {why}"),
                None => names.join(", "),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} |",
                requirement.id,
                requirement.level,
                requirement.versions,
                cell(requirement.says),
                cell(requirement.source),
                cell(&shown)
            );
        }
    }
    text
}

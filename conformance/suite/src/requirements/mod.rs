//! The table of requirements, in sections.

mod add;
mod callers;
mod capabilities;
mod chain;
mod check;
mod concurrency;
mod config;
mod del;
mod delegation;
mod environment;
mod errors;
mod gc;
mod identifiers;
mod results;
mod status;
mod versions;

use super::requirement::Requirement;

/// A section of the table: a heading and its rows.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// The heading.
    pub title: &'static str,
    /// A short name without spaces, for reports.
    pub slug: &'static str,
    /// The rows, in order.
    pub requirements: &'static [Requirement],
}

/// All sections, in the order of the document.
pub const SECTIONS: &[Section] = &[
    Section { title: "Environment", slug: "environment", requirements: environment::REQUIREMENTS },
    Section { title: "Identifiers", slug: "identifiers", requirements: identifiers::REQUIREMENTS },
    Section { title: "Configuration", slug: "config", requirements: config::REQUIREMENTS },
    Section { title: "Versions", slug: "versions", requirements: versions::REQUIREMENTS },
    Section { title: "Errors and output", slug: "errors", requirements: errors::REQUIREMENTS },
    Section { title: "Results", slug: "results", requirements: results::REQUIREMENTS },
    Section { title: "ADD", slug: "add", requirements: add::REQUIREMENTS },
    Section { title: "DEL", slug: "del", requirements: del::REQUIREMENTS },
    Section { title: "CHECK", slug: "check", requirements: check::REQUIREMENTS },
    Section { title: "GC", slug: "gc", requirements: gc::REQUIREMENTS },
    Section { title: "STATUS", slug: "status", requirements: status::REQUIREMENTS },
    Section { title: "Chains", slug: "chain", requirements: chain::REQUIREMENTS },
    Section { title: "Delegation and IPAM", slug: "delegation", requirements: delegation::REQUIREMENTS },
    Section {
        title: "Capabilities and arguments",
        slug: "capabilities",
        requirements: capabilities::REQUIREMENTS,
    },
    Section {
        title: "Concurrency and isolation on the node",
        slug: "concurrency",
        requirements: concurrency::REQUIREMENTS,
    },
    Section { title: "Callers", slug: "callers", requirements: callers::REQUIREMENTS },
];

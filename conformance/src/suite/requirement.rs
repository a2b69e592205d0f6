//! What is demanded of a plugin, as data.

use std::fmt;

use crate::runner::Version;

/// How strongly something is demanded, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The specification: MUST, or "is" and "required" in its older texts.
    Must,
    /// The specification: SHOULD.
    Should,
    /// The specification: MAY. What a plugin chose is reported.
    May,
    /// The document CONVENTIONS beside the specification.
    Convention,
    /// No text demands it, but a caller in wide use breaks without it.
    Interop,
    /// What the Go reference does beyond all that. Reported, never a failure.
    Reference,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
            Level::May => "MAY",
            Level::Convention => "CONVENTION",
            Level::Interop => "INTEROP",
            Level::Reference => "REFERENCE",
        })
    }
}

/// The versions of the specification that a requirement holds for, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub from: Version,
    /// The newest.
    pub to: Version,
}

impl Versions {
    /// All there are.
    pub const ALL: Versions = Versions::between(Version::V0_1_0, Version::V1_1_0);

    /// From this one on.
    pub const fn since(from: Version) -> Versions {
        Versions { from, to: Version::V1_1_0 }
    }

    /// Up to this one.
    pub const fn until(to: Version) -> Versions {
        Versions { from: Version::V0_1_0, to }
    }

    /// From one to the other.
    pub const fn between(from: Version, to: Version) -> Versions {
        Versions { from, to }
    }

    /// Whether this version is one of them.
    pub fn contains(self, version: Version) -> bool {
        self.from <= version && version <= self.to
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match (*self, self.from == self.to) {
            (Versions::ALL, _) => "all".to_owned(),
            (_, true) => self.from.to_string(),
            (Versions { from, to: Version::V1_1_0 }, _) => format!("{from} and later"),
            (Versions { from, to }, _) => format!("{from} to {to}"),
        };
        f.pad(&text)
    }
}

/// One thing demanded of a plugin.
#[derive(Debug, Clone, Copy)]
pub struct Requirement {
    /// Such as `ENV-05`; never used for anything else once it is published.
    pub id: &'static str,
    /// By whom, and how strongly.
    pub level: Level,
    /// Where it holds.
    pub versions: Versions,
    /// What is demanded.
    pub says: &'static str,
    /// Where it is written.
    pub source: &'static str,
    /// Why no trial shows it, if none does.
    pub unproven: Option<&'static str>,
}

impl Requirement {
    /// A requirement that a trial shows.
    pub const fn new(
        id: &'static str,
        level: Level,
        versions: Versions,
        says: &'static str,
        source: &'static str,
    ) -> Requirement {
        Requirement { id, level, versions, says, source, unproven: None }
    }

    /// The same, without a trial for this reason.
    #[must_use]
    pub const fn unproven(mut self, why: &'static str) -> Requirement {
        self.unproven = Some(why);
        self
    }
}

//! Requirements as data.

use std::fmt;

use cni_runner::Version;

/// How strongly something is required, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The specification: MUST; in its older texts also "is" and "required".
    Must,
    /// The specification: SHOULD.
    Should,
    /// The specification: MAY. The plugin's choice is reported.
    May,
    /// The document CONVENTIONS, which belongs to the specification.
    Convention,
    /// No text requires it, but a caller in wide use fails without it.
    Interop,
    /// What the Go reference plugins do beyond all that. Reported, never a failure.
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

/// The versions of the specification that a requirement applies to, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub from: Version,
    /// The newest.
    pub to: Version,
}

impl Versions {
    /// All published versions.
    pub const ALL: Versions = Versions::between(Version::V0_1_0, Version::V1_1_0);

    /// This version and later.
    pub const fn since(from: Version) -> Versions {
        Versions { from, to: Version::V1_1_0 }
    }

    /// This version and earlier.
    pub const fn until(to: Version) -> Versions {
        Versions { from: Version::V0_1_0, to }
    }

    /// From one version to another, both included.
    pub const fn between(from: Version, to: Version) -> Versions {
        Versions { from, to }
    }

    /// Whether the requirement holds for this version.
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

/// One requirement.
#[derive(Debug, Clone, Copy)]
pub struct Requirement {
    /// The ID, such as `ENV-05`. A published ID is never reused.
    pub id: &'static str,
    /// How strongly it is required, and by whom.
    pub level: Level,
    /// The versions that it applies to.
    pub versions: Versions,
    /// The requirement's text.
    pub says: &'static str,
    /// Where it is written.
    pub source: &'static str,
    /// Why it has no test case, if it has none.
    pub unproven: Option<&'static str>,
}

impl Requirement {
    /// A requirement with test cases.
    pub const fn new(
        id: &'static str,
        level: Level,
        versions: Versions,
        says: &'static str,
        source: &'static str,
    ) -> Requirement {
        Requirement { id, level, versions, says, source, unproven: None }
    }

    /// The same requirement without a test case, for this reason.
    #[must_use]
    pub const fn unproven(mut self, why: &'static str) -> Requirement {
        self.unproven = Some(why);
        self
    }
}

//! The versions of the CNI specification and their differences.

use std::fmt;

/// A released version of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpecVersion {
    /// 0.1.0: ADD and DEL; results are `ip4` and `ip6` objects.
    V0_1_0,
    /// 0.2.0: as 0.1.0, with VERSION.
    V0_2_0,
    /// 0.3.0: results list `interfaces` and `ips`.
    V0_3_0,
    /// 0.3.1: as 0.3.0, with an error in the text corrected.
    V0_3_1,
    /// 0.4.0: CHECK, and prevResult on DEL.
    V0_4_0,
    /// 1.0.0: without `ips[].version`.
    V1_0_0,
    /// 1.1.0: GC and STATUS; more attributes of interfaces and routes.
    V1_1_0,
}

/// The JSON layout of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `ip4` and `ip6`, each with its own routes; at most one address per family and no interfaces.
    PerFamily,
    /// `interfaces`, `ips` (each with its IP `version`), `routes`, and `dns`, which is always present.
    VersionedIps,
    /// `interfaces`, `ips`, `routes`, and `dns` if it is not empty.
    Ips,
}

/// The texts of the versions, oldest first.
const TEXTS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

impl SpecVersion {
    /// Every released version, oldest first.
    pub const ALL: &'static [SpecVersion] = {
        use SpecVersion::*;
        &[V0_1_0, V0_2_0, V0_3_0, V0_3_1, V0_4_0, V1_0_0, V1_1_0]
    };

    /// The versions whose results list interfaces. A plugin that is always chained supports these.
    pub const CHAINED: &'static [SpecVersion] = SpecVersion::ALL.split_at(2).1;

    /// The newest version. Error objects have it if the configuration's version is unknown.
    pub const NEWEST: SpecVersion = SpecVersion::V1_1_0;

    /// Parses `cniVersion`. Empty text means 0.1.0. `None` if `text` is not exactly a released version.
    pub fn parse(text: &str) -> Option<SpecVersion> {
        if text.is_empty() {
            return Some(SpecVersion::V0_1_0);
        }
        let known = SpecVersion::ALL.iter().zip(TEXTS).find(|(_, known)| *known == text);
        known.map(|(version, _)| *version)
    }

    /// The text of the version, such as `1.0.0`.
    pub fn as_str(self) -> &'static str {
        // The texts have the order of the enum; a unit test checks that.
        TEXTS[self as usize]
    }

    /// The JSON layout of results of this version.
    pub fn layout(self) -> Layout {
        match self {
            SpecVersion::V0_1_0 | SpecVersion::V0_2_0 => Layout::PerFamily,
            SpecVersion::V0_3_0 | SpecVersion::V0_3_1 | SpecVersion::V0_4_0 => Layout::VersionedIps,
            SpecVersion::V1_0_0 | SpecVersion::V1_1_0 => Layout::Ips,
        }
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Checks the syntax of a version: one to three integers, separated by dots.
///
/// CHECK, GC and STATUS compare versions. For these verbs wrong syntax is a decoding error (code 6), and an
/// unknown version with correct syntax is an incompatible version (code 1).
pub fn is_well_formed(text: &str) -> Result<(), String> {
    let parts: Vec<&str> = text.split('.').collect();
    if parts.len() > 3 {
        return Err(format!("invalid version {text:?}: too many parts"));
    }
    for (part, which) in parts.iter().zip(["major", "minor", "micro"]) {
        if part.parse::<u32>().is_err() {
            return Err(format!("failed to convert {which} version part {part:?} of {text:?}: not a number"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_have_the_order_of_the_enum() {
        for (index, version) in SpecVersion::ALL.iter().enumerate() {
            assert_eq!(*version as usize, index);
            assert_eq!(SpecVersion::parse(version.as_str()), Some(*version));
        }
        assert_eq!((TEXTS.len(), SpecVersion::CHAINED.first()), (7, Some(&SpecVersion::V0_3_0)));
    }

    #[test]
    fn only_exact_version_texts_parse() {
        assert_eq!(SpecVersion::parse(""), Some(SpecVersion::V0_1_0));
        for text in ["1.0", "0.4", "v1.0.0", " 1.0.0", "1.2.0", "2.0.0", "0.5.0", "foo"] {
            assert_eq!(SpecVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_unknown_version_is_well_formed() {
        assert!(is_well_formed("9.9.9").is_ok());
        assert!(is_well_formed("1.0").is_ok());
        assert!(is_well_formed("foo").is_err());
        assert!(is_well_formed("1.x").is_err());
        assert!(is_well_formed("1.0.0.0").is_err());
    }
}

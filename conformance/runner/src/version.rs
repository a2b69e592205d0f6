//! Versions of the CNI specification.

use std::fmt;

/// The newest version that libcni, and therefore this runner, uses.
pub const LATEST: Version = Version::V1_1_0;

pub(super) const WITH_CHECK: Version = Version::V0_4_0;
pub(super) const WITH_GC: Version = Version::V1_1_0;

/// The versions that a result may have; libcni has a result type for each of them only.
const OF_RESULTS: [&str; 8] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", ""];

/// A specification version, ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// 0.1.0
    pub const V0_1_0: Version = Version(0, 1, 0);
    /// 0.2.0, the first with VERSION.
    pub const V0_2_0: Version = Version(0, 2, 0);
    /// 0.3.0, the first with chains.
    pub const V0_3_0: Version = Version(0, 3, 0);
    /// 0.3.1
    pub const V0_3_1: Version = Version(0, 3, 1);
    /// 0.4.0, the first with CHECK and with `prevResult` at DEL.
    pub const V0_4_0: Version = Version(0, 4, 0);
    /// 1.0.0
    pub const V1_0_0: Version = Version(1, 0, 0);
    /// 1.1.0, the first with GC and STATUS.
    pub const V1_1_0: Version = Version(1, 1, 0);

    /// All published versions, oldest first.
    pub const PUBLISHED: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// Parses `major.minor.patch`. As in libcni, an empty text means 0.1.0, and missing parts are 0.
    pub fn parse(text: &str) -> Option<Version> {
        if text.is_empty() {
            return Some(Version(0, 1, 0));
        }
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let version =
            Version(parts.next()??, parts.next().unwrap_or(Some(0))?, parts.next().unwrap_or(Some(0))?);
        parts.next().is_none().then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.0, self.1, self.2))
    }
}

/// Whether a result of this version can be read.
pub(super) fn result_version_is_known(text: &str) -> bool {
    OF_RESULTS.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number_and_empty_means_0_1_0() {
        assert!(Version::parse("0.10.0") > Version::parse("0.4.0"));
        assert_eq!(Version::parse(""), Some(Version(0, 1, 0)));
        assert_eq!(Version::parse("1.0"), Some(Version(1, 0, 0)));
        assert_eq!(Version::parse("1.0.0.0"), None);
        assert_eq!(Version::parse("one"), None);
    }
}

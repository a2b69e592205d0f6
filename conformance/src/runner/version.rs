//! Versions of the CNI specification, as far as a runtime has to compare them.

/// The newest specification version that libcni, and so this runner, asks a plugin for.
pub const LATEST: Version = Version(1, 1, 0);

/// First version with CHECK and with `prevResult` at DEL.
pub(super) const WITH_CHECK: Version = Version(0, 4, 0);
/// First version with GC and STATUS.
pub(super) const WITH_GC: Version = Version(1, 1, 0);

/// Versions a result may carry; libcni has a result type for each, and none for others.
const OF_RESULTS: [&str; 8] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", ""];

/// A specification version, ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads `major.minor.patch`. An absent version means 0.1.0, as in libcni; missing parts count as 0.
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

/// Whether a result of this version can be read.
pub(super) fn result_version_is_known(text: &str) -> bool {
    OF_RESULTS.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number_and_nothing_means_the_first() {
        assert!(Version::parse("0.10.0") > Version::parse("0.4.0"));
        assert_eq!(Version::parse(""), Some(Version(0, 1, 0)));
        assert_eq!(Version::parse("1.0"), Some(Version(1, 0, 0)));
        assert_eq!(Version::parse("1.0.0.0"), None);
        assert_eq!(Version::parse("one"), None);
    }
}

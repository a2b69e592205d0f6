//! Specification versions: which there are, and what each allows.

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
    /// 0.3.1: as 0.3.0, with a slip in the text mended.
    V0_3_1,
    /// 0.4.0: CHECK, and prevResult on DEL.
    V0_4_0,
    /// 1.0.0: `ips[].version` is gone.
    V1_0_0,
    /// 1.1.0: GC and STATUS; more attributes of interfaces and routes.
    V1_1_0,
}

/// How a result is laid out in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `ip4` and `ip6`, each with its own routes; at most one address per family and no interfaces.
    PerFamily,
    /// `interfaces`, `ips` (each with its IP `version`), `routes`, and `dns` always present.
    VersionedIps,
    /// `interfaces`, `ips`, `routes`, and `dns` if there is one.
    Ips,
}

/// One row of the table that everything which depends on a version reads.
struct Row {
    version: SpecVersion,
    text: &'static str,
    layout: Layout,
    /// `mtu`, `socketPath`, `pciID` of an interface; `mtu`, `advmss`, `priority`, `table`, `scope` of a route.
    attributes: bool,
    check: bool,
    gc_and_status: bool,
}

#[rustfmt::skip]
const TABLE: [Row; 7] = {
    use Layout::*;
    use SpecVersion::*;
    [
        Row { version: V0_1_0, text: "0.1.0", layout: PerFamily,    attributes: false, check: false, gc_and_status: false },
        Row { version: V0_2_0, text: "0.2.0", layout: PerFamily,    attributes: false, check: false, gc_and_status: false },
        Row { version: V0_3_0, text: "0.3.0", layout: VersionedIps, attributes: false, check: false, gc_and_status: false },
        Row { version: V0_3_1, text: "0.3.1", layout: VersionedIps, attributes: false, check: false, gc_and_status: false },
        Row { version: V0_4_0, text: "0.4.0", layout: VersionedIps, attributes: false, check: true,  gc_and_status: false },
        Row { version: V1_0_0, text: "1.0.0", layout: Ips,          attributes: false, check: true,  gc_and_status: false },
        Row { version: V1_1_0, text: "1.1.0", layout: Ips,          attributes: true,  check: true,  gc_and_status: true },
    ]
};

impl SpecVersion {
    /// Every released version, oldest first.
    pub const ALL: &'static [SpecVersion] = {
        use SpecVersion::*;
        &[V0_1_0, V0_2_0, V0_3_0, V0_3_1, V0_4_0, V1_0_0, V1_1_0]
    };

    /// The newest version, in which errors are written that concern no readable configuration.
    pub const NEWEST: SpecVersion = SpecVersion::V1_1_0;

    fn row(self) -> &'static Row {
        // The table is in the order of the enumeration; a unit test holds it to that.
        &TABLE[self as usize]
    }

    /// The version a configuration's `cniVersion` names. Empty means 0.1.0; anything but the exact text of a
    /// released version is `None`.
    pub fn parse(text: &str) -> Option<SpecVersion> {
        if text.is_empty() {
            return Some(SpecVersion::V0_1_0);
        }
        TABLE.iter().find(|row| row.text == text).map(|row| row.version)
    }

    /// The text of the version, such as `1.0.0`.
    pub fn as_str(self) -> &'static str {
        self.row().text
    }

    /// How results of this version are laid out.
    pub fn layout(self) -> Layout {
        self.row().layout
    }

    /// Whether results of this version may hold the attributes that 1.1.0 added to interfaces and routes.
    pub fn has_attributes(self) -> bool {
        self.row().attributes
    }

    /// Whether a configuration of this version may be CHECKed.
    pub fn allows_check(self) -> bool {
        self.row().check
    }

    /// Whether a configuration of this version allows GC and STATUS.
    pub fn allows_gc_and_status(self) -> bool {
        self.row().gc_and_status
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether `text` has the form of a version at all: one to three whole numbers between dots.
///
/// CHECK, GC and STATUS compare versions, so for them a text that is no version is a decoding error (code 6) while a
/// version that is merely unknown is an incompatible one (code 1).
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
    fn table_is_in_the_order_of_the_enumeration() {
        for (index, version) in SpecVersion::ALL.iter().enumerate() {
            assert_eq!(*version as usize, index);
            assert_eq!(TABLE[index].version, *version);
            assert_eq!(SpecVersion::parse(version.as_str()), Some(*version));
        }
        assert_eq!(TABLE.len(), SpecVersion::ALL.len());
    }

    #[test]
    fn only_exact_texts_are_versions() {
        assert_eq!(SpecVersion::parse(""), Some(SpecVersion::V0_1_0));
        for text in ["1.0", "0.4", "v1.0.0", " 1.0.0", "1.2.0", "2.0.0", "0.5.0", "foo"] {
            assert_eq!(SpecVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn verbs_come_with_their_versions() {
        assert!(!SpecVersion::V0_3_1.allows_check());
        assert!(SpecVersion::V0_4_0.allows_check());
        assert!(!SpecVersion::V1_0_0.allows_gc_and_status());
        assert!(SpecVersion::V1_1_0.allows_gc_and_status());
    }

    #[test]
    fn malformed_versions_are_told_from_unknown_ones() {
        assert!(is_well_formed("9.9.9").is_ok());
        assert!(is_well_formed("1.0").is_ok());
        assert!(is_well_formed("foo").is_err());
        assert!(is_well_formed("1.x").is_err());
        assert!(is_well_formed("1.0.0.0").is_err());
    }
}

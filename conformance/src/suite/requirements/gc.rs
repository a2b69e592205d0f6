//! What GC does.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, May, Must, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "GC-01",
        Should,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC removes as much as it can of what belongs to attachments of this network that are not listed, \
         and leaves those listed and other networks alone.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-02",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "The attachments that are valid are listed in `cni.dev/valid-attachments`, or under its first \
         name `cni.dev/attachments`; either is understood.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-03",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "A list that is empty, `null` or absent does not upset GC. Empty and `null` mean that no \
         attachment is valid.",
        "CRI-O (ocicni); cnitool",
    ),
    Requirement::new(
        "GC-04",
        May,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC may take it that the namespaces of stale attachments are gone, and needs none of them.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-05",
        Should,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC carries on after a failure to remove something, and reports it in the end.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-06",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC is forwarded to the plugins that ADD is delegated to.",
        "SPEC 1.1.0, section 2, CNI operations: GC; section 4, Plugin delegation",
    ),
    Requirement::new(
        "GC-07",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC prints nothing when it succeeds, and an error object when it fails.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-08",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC works without a result, without a runtimeConfig and without the variables of an attachment, \
         and DEL works though GC was there first.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
];

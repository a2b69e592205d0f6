//! Requirements on GC.

use crate::requirement::Level::{Interop, May, Must, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "GC-01",
        Should,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC removes as much as it can of the state of attachments of this network that are not listed, \
         and does not change listed attachments and other networks.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-02",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "`cni.dev/valid-attachments` lists the valid attachments; so does its older name \
         `cni.dev/attachments`. A plugin accepts either.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-03",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC accepts a list that is empty, `null` or absent. Empty and `null` mean that no attachment \
         is valid.",
        "CRI-O (ocicni); cnitool",
    ),
    Requirement::new(
        "GC-04",
        May,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC may assume that the namespaces of stale attachments are gone, and does not need them.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-05",
        Should,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC continues after a failed removal and reports the failure at the end.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-06",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC is forwarded to the same plugins as ADD.",
        "SPEC 1.1.0, section 2, CNI operations: GC; section 4, Plugin delegation",
    ),
    Requirement::new(
        "GC-07",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC prints nothing if it succeeds, and an error object if it fails.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "GC-08",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC works without a result, without a runtimeConfig and without the variables of an attachment, \
         and DEL still works after GC.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
];

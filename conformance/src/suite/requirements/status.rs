//! What STATUS does.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, Must, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "STA-01",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS succeeds if the plugin is ready for ADD, and fails with an error object if it knows that \
         it is not.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "STA-02",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS fails with code 50 if ADD cannot be served, and with 51 if containers may be cut off \
         besides.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "STA-03",
        Should,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS fails if a daemon that the plugin needs is not running.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    )
    .unproven("no plugin of this suite needs a daemon"),
    Requirement::new(
        "STA-04",
        Should,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS fails if addresses or other things that ADD needs are used up.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    )
    .unproven("a failing STATUS would make the node NotReady and in time evict its pods, so a plugin is right not to"),
    Requirement::new(
        "STA-05",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS is delegated to the plugins that ADD is delegated to, and fails if one of them does.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "STA-06",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "No operation depends on STATUS having been asked, or on what it said.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "STA-07",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS is quick and changes nothing, for it is asked over and over.",
        "CRI-O (ocicni); containerd (go-cni)",
    ),
];

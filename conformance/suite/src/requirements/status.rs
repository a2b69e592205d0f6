//! Requirements on STATUS.

use crate::requirement::Level::{Interop, Must, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "STA-01",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS succeeds if the plugin is ready for ADD, and fails with an error object if the plugin knows \
         that it is not ready.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "STA-02",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS fails with code 50 if ADD cannot be served, and with 51 if existing containers may also have \
         limited connectivity.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "STA-03",
        Should,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS fails if a daemon that the plugin needs is not running.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    )
    .unproven("no plugin that the suite knows needs a daemon"),
    Requirement::new(
        "STA-04",
        Should,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS fails if addresses or other resources that ADD needs are exhausted.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    )
    .unproven(
        "a failing STATUS makes the node NotReady and in the end evicts its pods, so a plugin should not fail \
         for this",
    ),
    Requirement::new(
        "STA-05",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS is delegated to the same plugins as ADD and fails if one of them fails.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "STA-06",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "No operation depends on an earlier STATUS or on its answer.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "STA-07",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS is fast and changes nothing, because runtimes call it periodically.",
        "CRI-O (ocicni); containerd (go-cni)",
    ),
];

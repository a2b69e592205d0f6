//! Requirements on version negotiation and the operation VERSION.

use crate::requirement::Level::{Interop, May, Must, Reference, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "VER-01",
        Interop,
        Versions::ALL,
        "A configuration whose `cniVersion` is absent, empty or `null` has version 0.1.0 and gets a \
         result of 0.1.0.",
        "libcni",
    ),
    Requirement::new(
        "VER-02",
        Should,
        Versions::since(Version::V0_4_0),
        "A configuration with a version that the plugin does not support is an error with code 1.",
        "SPEC, section 5, Error; 0.4.0: Well-known Error Codes",
    ),
    Requirement::new(
        "VER-03",
        Reference,
        Versions::ALL,
        "A version is supported only if it is spelled exactly as the plugin declares it.",
        "containernetworking/cni, pkg/version",
    ),
    Requirement::new(
        "VER-04",
        Must,
        Versions::since(Version::V1_0_0),
        "A `cniVersion` that is not a string is an error with code 6.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "VER-05",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK with a version before 0.4.0, and GC and STATUS with one before 1.1.0, are errors.",
        "SPEC, section 2, CNI operations; 0.4.0: Parameters",
    ),
    Requirement::new(
        "VER-06",
        Must,
        Versions::since(Version::V0_4_0),
        "The `cniVersion` of a result equals that of the configuration.",
        "SPEC 1.0.0, section 5, Result types; 0.4.0: Result",
    ),
    Requirement::new(
        "VER-07",
        Must,
        Versions::ALL,
        "The whole result has the layout of its version.",
        "SPEC, section 5, Result types; older: Result",
    ),
    Requirement::new(
        "VER-08",
        May,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "`cniVersions` is for the runtime. A plugin may ignore it and uses `cniVersion`.",
        "SPEC 1.1.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "VCMD-01",
        Must,
        Versions::since(Version::V0_2_0),
        "VERSION exits with 0 and prints an object with `cniVersion` and a non-empty list \
         `supportedVersions`.",
        "SPEC, section 5, VERSION Success; older: Parameters",
    ),
    Requirement::new(
        "VCMD-02",
        Must,
        Versions::since(Version::V1_0_0),
        "The `cniVersion` in the answer to VERSION equals that of the request.",
        "SPEC 1.0.0, section 5, VERSION Success",
    ),
    Requirement::new(
        "VCMD-03",
        Interop,
        Versions::since(Version::V0_2_0),
        "VERSION works if standard input is empty, is not JSON, or is never closed.",
        "libcni",
    ),
    Requirement::new(
        "VCMD-04",
        Interop,
        Versions::since(Version::V0_2_0),
        "A runtime can parse the answer to VERSION: both keys are present, and each version has the form \
         `major.minor.patch`.",
        "libcni",
    ),
    Requirement::new(
        "VCMD-05",
        Interop,
        Versions::between(Version::V0_1_0, Version::V0_1_0),
        "A plugin without VERSION fails with exactly `unknown CNI_COMMAND: VERSION`; the runtime then \
         assumes version 0.1.0.",
        "libcni",
    )
    .unproven("every plugin that the suite knows has VERSION"),
    Requirement::new(
        "VCMD-06",
        Must,
        Versions::since(Version::V0_2_0),
        "VERSION changes nothing and needs no privileges.",
        "SPEC, section 2, CNI operations: VERSION; older: Parameters",
    ),
    Requirement::new(
        "VCMD-07",
        Must,
        Versions::since(Version::V0_2_0),
        "A plugin works with each version that it declares.",
        "SPEC, section 5, VERSION Success; older: Parameters",
    ),
];

//! Agreeing on a version, and the operation VERSION.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, May, Must, Reference, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "VER-01",
        Interop,
        Versions::ALL,
        "A configuration without `cniVersion`, or with an empty one or `null`, is one of 0.1.0 and gets a \
         result of 0.1.0.",
        "libcni",
    ),
    Requirement::new(
        "VER-02",
        Should,
        Versions::since(Version::V0_4_0),
        "A configuration of a version that the plugin does not support is an error with code 1.",
        "SPEC, section 5, Error; 0.4.0: Well-known Error Codes",
    ),
    Requirement::new(
        "VER-03",
        Reference,
        Versions::ALL,
        "Only a version spelled exactly as the plugin declares it is supported.",
        "containernetworking/cni, pkg/version",
    ),
    Requirement::new(
        "VER-04",
        Must,
        Versions::since(Version::V1_0_0),
        "A `cniVersion` that is no string is an error with code 6.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "VER-05",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK of a configuration before 0.4.0, and GC and STATUS of one before 1.1.0, are errors.",
        "SPEC, section 2, CNI operations; 0.4.0: Parameters",
    ),
    Requirement::new(
        "VER-06",
        Must,
        Versions::since(Version::V0_4_0),
        "The `cniVersion` of a result is that of the configuration.",
        "SPEC 1.0.0, section 5, Result types; 0.4.0: Result",
    ),
    Requirement::new(
        "VER-07",
        Must,
        Versions::ALL,
        "The whole of a result has the shape that its version prescribes.",
        "SPEC, section 5, Result types; older: Result",
    ),
    Requirement::new(
        "VER-08",
        May,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "`cniVersions` belongs to the runtime. A plugin need not know it and goes by `cniVersion`.",
        "SPEC 1.1.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "VCMD-01",
        Must,
        Versions::since(Version::V0_2_0),
        "VERSION ends with 0 and an object with `cniVersion` and `supportedVersions`, a list that is not \
         empty.",
        "SPEC, section 5, VERSION Success; older: Parameters",
    ),
    Requirement::new(
        "VCMD-02",
        Must,
        Versions::since(Version::V1_0_0),
        "The `cniVersion` in the answer to VERSION is the one that was asked with.",
        "SPEC 1.0.0, section 5, VERSION Success",
    ),
    Requirement::new(
        "VCMD-03",
        Interop,
        Versions::since(Version::V0_2_0),
        "VERSION works with nothing on standard input, with what is no JSON, and with an input that is \
         never closed.",
        "libcni",
    ),
    Requirement::new(
        "VCMD-04",
        Interop,
        Versions::since(Version::V0_2_0),
        "The answer to VERSION is one that a runtime can use: both keys are there, and each version is \
         written out in full.",
        "libcni",
    ),
    Requirement::new(
        "VCMD-05",
        Interop,
        Versions::between(Version::V0_1_0, Version::V0_1_0),
        "A plugin without VERSION fails with exactly `unknown CNI_COMMAND: VERSION`, so that it is taken \
         as one of 0.1.0.",
        "libcni",
    )
    .unproven("every plugin of this suite has VERSION"),
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
        "Each version that a plugin declares is one that it works with.",
        "SPEC, section 5, VERSION Success; older: Parameters",
    ),
];

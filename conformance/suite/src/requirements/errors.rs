//! Requirements on exit status, output and error objects.

use crate::requirement::Level::{Interop, May, Must, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "EXIT-01",
        Must,
        Versions::ALL,
        "A plugin exits with 0 if it succeeds, and with another status if it fails.",
        "SPEC, section 2, Execution protocol; older: Result",
    ),
    Requirement::new(
        "ERR-01",
        Should,
        Versions::ALL,
        "A plugin that fails prints an error object on standard output.",
        "SPEC, section 5, Error; a MUST up to 0.4.0: Result",
    ),
    Requirement::new(
        "ERR-02",
        Should,
        Versions::ALL,
        "An error object has `cniVersion`, a numeric `code`, a `msg` and, optionally, `details`.",
        "SPEC, section 5, Error; a MUST up to 0.4.0: Result",
    ),
    Requirement::new(
        "ERR-03",
        Must,
        Versions::ALL,
        "Codes below 100 have the meaning that the specification defines. A plugin's own codes \
         start at 100.",
        "SPEC, section 5, Error; older: Well-known Error Codes",
    ),
    Requirement::new(
        "ERR-04",
        Must,
        Versions::ALL,
        "If the specification defines a code for a failure, the plugin uses that code.",
        "SPEC, section 5, Error; older: Well-known Error Codes",
    ),
    Requirement::new(
        "ERR-05",
        Must,
        Versions::since(Version::V0_2_0),
        "An error with code 2 names the unsupported field and its value.",
        "SPEC, section 5, Error; older: Well-known Error Codes",
    ),
    Requirement::new(
        "ERR-06",
        Must,
        Versions::since(Version::V0_4_0),
        "An error with code 3 means that there is nothing to clean up and no DEL is needed.",
        "SPEC, section 5, Error; 0.4.0: Well-known Error Codes",
    )
    .unproven("no plugin that the suite knows keeps track of containers, so no call can cause this code"),
    Requirement::new(
        "ERR-07",
        Should,
        Versions::since(Version::V1_0_0),
        "A configuration that fails a plugin's validation is an error with code 7.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "ERR-08",
        Must,
        Versions::ALL,
        "Standard output has at most one JSON document and nothing else.",
        "SPEC, section 2, Execution protocol; older: Result",
    ),
    Requirement::new(
        "ERR-09",
        Interop,
        Versions::ALL,
        "Code, message and details of a delegate's error are passed on unchanged.",
        "libcni; CRI-O (ocicni)",
    ),
    Requirement::new(
        "OUT-01",
        Must,
        Versions::ALL,
        "A successful ADD prints its result on standard output.",
        "SPEC, section 5, Result types; older: Result",
    ),
    Requirement::new(
        "OUT-02",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK, GC, DEL and STATUS print nothing on standard output if they succeed.",
        "SPEC, section 2, CNI operations; 0.4.0: Parameters",
    ),
    Requirement::new(
        "OUT-03",
        Must,
        Versions::ALL,
        "Logs never go to standard output.",
        "SPEC, section 2, Execution protocol; older: Result",
    ),
    Requirement::new(
        "LOG-01",
        May,
        Versions::ALL,
        "Standard error may be used for logs.",
        "SPEC, section 2, Execution protocol; older: Result",
    )
    .unproven("a permission that no plugin can violate"),
    Requirement::new(
        "LOG-02",
        Interop,
        Versions::ALL,
        "The important parts of an error are in `msg` or `details`, because callers do not show standard \
         error.",
        "libcni",
    ),
];

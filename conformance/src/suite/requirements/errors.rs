//! How a plugin ends, what it prints and what it reports of a failure.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, May, Must, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "EXIT-01",
        Must,
        Versions::ALL,
        "A plugin ends with 0 when it succeeded, and with another status when it failed.",
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
        "An error object has `cniVersion`, a numeric `code`, a `msg` and, if there is more to tell, \
         `details`.",
        "SPEC, section 5, Error; a MUST up to 0.4.0: Result",
    ),
    Requirement::new(
        "ERR-03",
        Must,
        Versions::ALL,
        "Codes below 100 are used in the meaning that the specification gives them. A plugin's own codes \
         begin at 100.",
        "SPEC, section 5, Error; older: Well-known Error Codes",
    ),
    Requirement::new(
        "ERR-04",
        Must,
        Versions::ALL,
        "Where the specification has a code for a failure, that code is used.",
        "SPEC, section 5, Error; older: Well-known Error Codes",
    ),
    Requirement::new(
        "ERR-05",
        Must,
        Versions::since(Version::V0_2_0),
        "An error with code 2 names the field that is not supported and its value.",
        "SPEC, section 5, Error; older: Well-known Error Codes",
    ),
    Requirement::new(
        "ERR-06",
        Must,
        Versions::since(Version::V0_4_0),
        "An error with code 3 means that nothing is left to clean up and no DEL is needed.",
        "SPEC, section 5, Error; 0.4.0: Well-known Error Codes",
    )
    .unproven("no plugin of this suite knows of containers on its own, so nothing brings the code about"),
    Requirement::new(
        "ERR-07",
        Should,
        Versions::since(Version::V1_0_0),
        "A configuration that does not pass a plugin's checks is an error with code 7.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "ERR-08",
        Must,
        Versions::ALL,
        "Standard output holds at most one JSON document, and nothing besides.",
        "SPEC, section 2, Execution protocol; older: Result",
    ),
    Requirement::new(
        "ERR-09",
        Interop,
        Versions::ALL,
        "The code, message and details of a delegate's error come through unchanged.",
        "libcni; CRI-O (ocicni)",
    ),
    Requirement::new(
        "OUT-01",
        Must,
        Versions::ALL,
        "ADD that succeeds prints its result on standard output.",
        "SPEC, section 5, Result types; older: Result",
    ),
    Requirement::new(
        "OUT-02",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK, GC, DEL and STATUS print nothing on standard output when they succeed.",
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
        "Standard error is free for logs.",
        "SPEC, section 2, Execution protocol; older: Result",
    )
    .unproven("a permission: whatever a plugin writes there, or does not, keeps it"),
    Requirement::new(
        "LOG-02",
        Interop,
        Versions::ALL,
        "What matters of a failure is in `msg` or `details`, since nobody sees standard error then.",
        "libcni",
    ),
];

//! Requirements on `prevResult` and on plugins in a chain.

use crate::requirement::Level::{Convention, Interop, Must, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "PREV-01",
        Must,
        Versions::since(Version::V1_0_0),
        "ADD passes a `prevResult` on, together with its own changes.",
        "SPEC 1.0.0, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "PREV-02",
        Must,
        Versions::since(Version::V1_0_0),
        "If ADD has nothing to change, it prints a result equivalent to `prevResult`, with everything that \
         the version defines.",
        "SPEC 1.0.0, section 2, CNI operations: ADD; section 5, ADD Success",
    ),
    Requirement::new(
        "PREV-03",
        Should,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "ADD prints `prevResult` again unless it intends to change or suppress it.",
        "SPEC 0.3.0 to 0.4.0, Network Configuration Lists",
    ),
    Requirement::new(
        "CHN-01",
        Must,
        Versions::since(Version::V0_3_0),
        "ADD of a plugin that needs an earlier plugin's result fails without one.",
        "SPEC, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "CHN-02",
        Must,
        Versions::since(Version::V0_3_0),
        "A chained plugin changes only its own parts of the result.",
        "SPEC, section 5, ADD Success; older: Network Configuration Lists",
    ),
    Requirement::new(
        "CHN-03",
        Convention,
        Versions::since(Version::V0_3_0),
        "A plugin that does not depend on the kind of interface works on an existing one.",
        "CONVENTIONS, Chained Plugins",
    ),
    Requirement::new(
        "CHN-04",
        Interop,
        Versions::since(Version::V0_3_0),
        "A `prevResult` may have interfaces of other kinds or none, and addresses whose `interface` is \
         absent or out of range. None of these makes a plugin crash.",
        "containerd (go-cni); podman",
    ),
    Requirement::new(
        "CHN-05",
        Must,
        Versions::since(Version::V0_4_0),
        "At CHECK and DEL `prevResult` is the result of the whole chain. A plugin accepts what \
         later plugins added.",
        "SPEC, section 3, Execution of network configurations; 0.4.0: Network Configuration Lists",
    ),
    Requirement::new(
        "CHN-06",
        Must,
        Versions::since(Version::V0_3_0),
        "DEL of a chain runs from the last plugin to the first: a chained plugin's DEL works while the \
         interface exists and after the namespace is gone.",
        "SPEC, section 3, Execution of network configurations; older: Network Configuration Lists",
    ),
];

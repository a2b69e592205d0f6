//! Results of earlier plugins, and plugins in a chain.

use crate::runner::Version;
use crate::suite::requirement::Level::{Convention, Interop, Must, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "PREV-01",
        Must,
        Versions::since(Version::V1_0_0),
        "ADD that is given a `prevResult` hands it on together with its own changes.",
        "SPEC 1.0.0, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "PREV-02",
        Must,
        Versions::since(Version::V1_0_0),
        "ADD with nothing to change prints a result equivalent to `prevResult`, with all that its version \
         knows.",
        "SPEC 1.0.0, section 2, CNI operations: ADD; section 5, ADD Success",
    ),
    Requirement::new(
        "PREV-03",
        Should,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "ADD prints the `prevResult` again unless it means to change or suppress it.",
        "SPEC 0.3.0 to 0.4.0, Network Configuration Lists",
    ),
    Requirement::new(
        "CHN-01",
        Must,
        Versions::since(Version::V0_3_0),
        "ADD of a plugin that works on an earlier plugin's result fails without one.",
        "SPEC, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "CHN-02",
        Must,
        Versions::since(Version::V0_3_0),
        "A chained plugin changes nothing in the result but what is its own.",
        "SPEC, section 5, ADD Success; older: Network Configuration Lists",
    ),
    Requirement::new(
        "CHN-03",
        Convention,
        Versions::since(Version::V0_3_0),
        "A plugin to which the kind of the interface does not matter works on one that is there already.",
        "CONVENTIONS, Chained Plugins",
    ),
    Requirement::new(
        "CHN-04",
        Interop,
        Versions::since(Version::V0_3_0),
        "A `prevResult` may have interfaces of other kinds or none, and addresses whose `interface` is \
         absent or out of range. None of it makes a plugin crash.",
        "containerd (go-cni); podman",
    ),
    Requirement::new(
        "CHN-05",
        Must,
        Versions::since(Version::V0_4_0),
        "At CHECK and DEL `prevResult` is the result of the whole chain, and a plugin copes with what \
         later plugins added.",
        "SPEC, section 3, Execution of network configurations; 0.4.0: Network Configuration Lists",
    ),
    Requirement::new(
        "CHN-06",
        Must,
        Versions::since(Version::V0_3_0),
        "DEL of a chain runs from the last plugin to the first: a chained plugin's DEL works while the \
         interface is there, and when the namespace is gone.",
        "SPEC, section 3, Execution of network configurations; older: Network Configuration Lists",
    ),
];

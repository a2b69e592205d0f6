//! Plugins at the same time, their ends, and what they leave alone.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, Must};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CONC-01",
        Must,
        Versions::since(Version::V1_0_0),
        "Operations for different containers work at the same time; what they share the plugin protects.",
        "SPEC 1.0.0, section 3, Lifecycle & Ordering",
    ),
    Requirement::new(
        "CONC-02",
        Interop,
        Versions::ALL,
        "A plugin works while another one works in the same namespace.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CONC-03",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC at the same time as ADD or DEL does neither of them harm.",
        "SPEC 1.1.0, section 3, Lifecycle & Ordering",
    )
    .unproven("the runtime is bound to keep them apart, so no outcome of running them together is wrong"),
    Requirement::new(
        "CONC-04",
        Interop,
        Versions::ALL,
        "A plugin that was killed leaves no lock behind that keeps the next one waiting.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "CONC-05",
        Interop,
        Versions::ALL,
        "A delegate that outlives its killed caller leaves a state that later calls can work with.",
        "libcni",
    ),
    Requirement::new(
        "PROC-01",
        Interop,
        Versions::ALL,
        "When a plugin has ended, no process that it started is left, and nothing holds its standard \
         streams open.",
        "libcni",
    ),
    Requirement::new(
        "PROC-02",
        Interop,
        Versions::ALL,
        "Every call ends within ten seconds. A plugin waits for the end of its standard input and for \
         nothing after it.",
        "libcni",
    ),
    Requirement::new(
        "SYS-01",
        Interop,
        Versions::ALL,
        "An operation leaves alone what is not its attachment's: other links, addresses, routes, rules, \
         firewall rules, sysctls and qdiscs of the node, and the state of other containers.",
        "containerd (go-cni); CRI-O (ocicni); podman; nerdctl",
    ),
];

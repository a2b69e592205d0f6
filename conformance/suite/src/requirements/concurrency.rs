//! Requirements on concurrent calls, on the end of processes, and on state that belongs to others.

use crate::requirement::Level::{Interop, Must};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CONC-01",
        Must,
        Versions::since(Version::V1_0_0),
        "Operations for different containers can run at the same time; the plugin protects the state that \
         they share.",
        "SPEC 1.0.0, section 3, Lifecycle & Ordering",
    ),
    Requirement::new(
        "CONC-02",
        Interop,
        Versions::ALL,
        "A plugin works while another plugin works in the same namespace.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CONC-03",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC at the same time as ADD or DEL damages neither.",
        "SPEC 1.1.0, section 3, Lifecycle & Ordering",
    )
    .unproven(
        "the specification forbids the runtime to run them at the same time, so every outcome is allowed",
    ),
    Requirement::new(
        "CONC-04",
        Interop,
        Versions::ALL,
        "A killed plugin leaves no lock behind that blocks the next call.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "CONC-05",
        Interop,
        Versions::ALL,
        "A delegate that outlives its killed caller leaves state that later calls can handle.",
        "libcni",
    ),
    Requirement::new(
        "PROC-01",
        Interop,
        Versions::ALL,
        "When a plugin has ended, no process that it started still runs, and nothing holds its standard \
         streams open.",
        "libcni",
    ),
    Requirement::new(
        "PROC-02",
        Interop,
        Versions::ALL,
        "Every call ends within ten seconds. A plugin waits for the end of standard input and not for \
         anything after it.",
        "libcni",
    ),
    Requirement::new(
        "SYS-01",
        Interop,
        Versions::ALL,
        "An operation does not change what does not belong to its attachment: other links, addresses, \
         routes, rules, firewall rules, sysctls and qdiscs of the node, and the state of other containers.",
        "containerd (go-cni); CRI-O (ocicni); podman; nerdctl",
    ),
];

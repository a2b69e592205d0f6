//! Plugins that run others, and the IPAM plugins that are run.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, May, Must, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "DLG-01",
        Should,
        Versions::ALL,
        "A delegate is the first file of its name in the directories of CNI_PATH.",
        "SPEC, section 4, Plugin delegation; older: IP Allocation",
    ),
    Requirement::new(
        "DLG-02",
        Must,
        Versions::ALL,
        "A delegate gets the environment that the plugin got.",
        "SPEC, section 4, Plugin delegation; older: IP Allocation",
    ),
    Requirement::new(
        "DLG-03",
        Must,
        Versions::ALL,
        "A delegate gets the complete configuration on its standard input.",
        "SPEC, section 4, Plugin delegation; older: IP Allocation",
    ),
    Requirement::new(
        "DLG-04",
        Should,
        Versions::since(Version::V1_0_0),
        "What a delegate writes to standard error appears on that of the plugin.",
        "SPEC 1.0.0, section 4, Plugin delegation",
    ),
    Requirement::new(
        "DLG-05",
        Must,
        Versions::since(Version::V1_0_0),
        "CHECK and DEL, and from 1.1.0 GC, are delegated as ADD is, and a delegate's failure is the \
         plugin's.",
        "SPEC 1.0.0, section 4, Plugin delegation",
    ),
    Requirement::new(
        "DLG-06",
        Should,
        Versions::since(Version::V1_0_0),
        "When a delegate's ADD fails, the plugin runs it again with DEL before it fails itself.",
        "SPEC 1.0.0, section 4, Plugin delegation",
    ),
    Requirement::new(
        "DLG-07",
        Interop,
        Versions::ALL,
        "A plugin that fails after its delegate's ADD succeeded runs the delegate's DEL.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "DLG-08",
        Interop,
        Versions::ALL,
        "A delegate's result without `cniVersion` is taken to be of the configuration's version, and one \
         that is `null` does not make the plugin crash.",
        "libcni",
    ),
    Requirement::new(
        "DLG-09",
        Must,
        Versions::ALL,
        "A delegate that dies, or prints what is no result, makes the plugin fail with a proper error.",
        "SPEC, section 4, Plugin delegation; section 5, Error",
    ),
    Requirement::new(
        "IPAM-01",
        Must,
        Versions::ALL,
        "An IPAM plugin decides on address, gateway and routes, and returns them.",
        "SPEC, section 4, Plugin delegation; older: IP Allocation",
    ),
    Requirement::new(
        "IPAM-02",
        Must,
        Versions::since(Version::V0_3_0),
        "An IPAM plugin's result has no `interfaces` and no `interface` for an address.",
        "SPEC, section 5, Delegated plugins (IPAM); a SHOULD up to 0.4.0: IP Allocation",
    ),
    Requirement::new(
        "IPAM-03",
        Must,
        Versions::since(Version::V0_4_0),
        "An IPAM plugin's result is of the configuration's version, and a version that it does not \
         support is an error with code 1.",
        "SPEC, section 5, Delegated plugins (IPAM); 0.4.0: IP Allocation",
    ),
    Requirement::new(
        "IPAM-04",
        Must,
        Versions::since(Version::V1_0_0),
        "Containers that are added at the same time never get the same address.",
        "SPEC 1.0.0, section 3, Lifecycle & Ordering",
    ),
    Requirement::new(
        "IPAM-05",
        Should,
        Versions::since(Version::V0_3_0),
        "DEL of an IPAM plugin releases the address though the namespace is gone, and succeeds for a \
         container that it does not know.",
        "SPEC, section 2, CNI operations: DEL; older: IP Allocation",
    ),
    Requirement::new(
        "IPAM-06",
        May,
        Versions::since(Version::V1_0_0),
        "An IPAM plugin may leave out parts of the result that do not matter to it.",
        "SPEC 1.0.0, section 5, Delegated plugins (IPAM)",
    ),
    Requirement::new(
        "IPAM-07",
        Interop,
        Versions::ALL,
        "host-local understands the state that the reference's host-local left, and leaves its own in the \
         same form.",
        "containernetworking/plugins; nerdctl",
    ),
];

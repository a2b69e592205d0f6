//! Requirements on delegation and on IPAM plugins.

use crate::requirement::Level::{Interop, May, Must, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "DLG-01",
        Should,
        Versions::ALL,
        "A delegate is the first file of that name in the directories of CNI_PATH.",
        "SPEC, section 4, Plugin delegation; older: IP Allocation",
    ),
    Requirement::new(
        "DLG-02",
        Must,
        Versions::ALL,
        "A delegate gets the same environment as the plugin.",
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
        "The plugin passes its delegate's standard error on to its own.",
        "SPEC 1.0.0, section 4, Plugin delegation",
    ),
    Requirement::new(
        "DLG-05",
        Must,
        Versions::since(Version::V1_0_0),
        "CHECK and DEL, and from 1.1.0 GC, are delegated like ADD; if the delegate fails, the plugin \
         fails.",
        "SPEC 1.0.0, section 4, Plugin delegation",
    ),
    Requirement::new(
        "DLG-06",
        Should,
        Versions::since(Version::V1_0_0),
        "If a delegate's ADD fails, the plugin calls the delegate's DEL before it fails itself.",
        "SPEC 1.0.0, section 4, Plugin delegation",
    ),
    Requirement::new(
        "DLG-07",
        Interop,
        Versions::ALL,
        "A plugin that fails after its delegate's ADD has succeeded calls the delegate's DEL.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "DLG-08",
        Interop,
        Versions::ALL,
        "A delegate's result without `cniVersion` has the configuration's version. The result `null` does \
         not make the plugin crash.",
        "libcni",
    ),
    Requirement::new(
        "DLG-09",
        Must,
        Versions::ALL,
        "If a delegate crashes or prints no valid result, the plugin fails with a proper error.",
        "SPEC, section 4, Plugin delegation; section 5, Error",
    ),
    Requirement::new(
        "IPAM-01",
        Must,
        Versions::ALL,
        "An IPAM plugin chooses address, gateway and routes and returns them.",
        "SPEC, section 4, Plugin delegation; older: IP Allocation",
    ),
    Requirement::new(
        "IPAM-02",
        Must,
        Versions::since(Version::V0_3_0),
        "An IPAM plugin's result has no `interfaces`, and no `interface` in an entry of `ips`.",
        "SPEC, section 5, Delegated plugins (IPAM); a SHOULD up to 0.4.0: IP Allocation",
    ),
    Requirement::new(
        "IPAM-03",
        Must,
        Versions::since(Version::V0_4_0),
        "An IPAM plugin's result has the configuration's version; an unsupported version is an error with \
         code 1.",
        "SPEC, section 5, Delegated plugins (IPAM); 0.4.0: IP Allocation",
    ),
    Requirement::new(
        "IPAM-04",
        Must,
        Versions::since(Version::V1_0_0),
        "Containers added at the same time never get the same address.",
        "SPEC 1.0.0, section 3, Lifecycle & Ordering",
    ),
    Requirement::new(
        "IPAM-05",
        Should,
        Versions::since(Version::V0_3_0),
        "DEL of an IPAM plugin releases the address even if the namespace is gone, and succeeds for an \
         unknown container.",
        "SPEC, section 2, CNI operations: DEL; older: IP Allocation",
    ),
    Requirement::new(
        "IPAM-06",
        May,
        Versions::since(Version::V1_0_0),
        "An IPAM plugin may leave out the parts of the result that it does not set.",
        "SPEC 1.0.0, section 5, Delegated plugins (IPAM)",
    ),
    Requirement::new(
        "IPAM-07",
        Interop,
        Versions::ALL,
        "host-local reads the state of the reference's host-local and writes its own in the \
         same format.",
        "containernetworking/plugins; nerdctl",
    ),
];

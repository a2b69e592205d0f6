//! Requirements on DEL.

use crate::requirement::Level::{Interop, Must, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "DEL-01",
        Should,
        Versions::ALL,
        "DEL removes the interface or undoes the changes to it, and releases everything that the attachment \
         held.",
        "SPEC, section 2, CNI operations: DEL; older: Parameters",
    ),
    Requirement::new(
        "DEL-02",
        Must,
        Versions::since(Version::V1_0_0),
        "DEL succeeds any number of times.",
        "SPEC 1.0.0, section 2, CNI operations: DEL",
    ),
    Requirement::new(
        "DEL-03",
        Should,
        Versions::since(Version::V0_3_0),
        "DEL succeeds if the namespace, the interface or other parts are gone or CNI_NETNS is absent, \
         and releases everything that is left.",
        "SPEC, section 2, CNI operations: DEL; older: Parameters",
    ),
    Requirement::new(
        "DEL-04",
        Must,
        Versions::since(Version::V0_4_0),
        "DEL works without `prevResult`.",
        "SPEC 1.0.0, section 2, CNI operations: DEL; 0.4.0: Parameters",
    ),
    Requirement::new(
        "DEL-05",
        Must,
        Versions::since(Version::V0_3_0),
        "DEL is delegated to the IPAM plugin even if the namespace or the interface is gone.",
        "SPEC, section 2, CNI operations: DEL; section 4, Plugin delegation; older: IP Allocation",
    ),
    Requirement::new(
        "DEL-06",
        Must,
        Versions::since(Version::V1_0_0),
        "DEL fails with the delegate's error if the delegate's DEL fails.",
        "SPEC 1.0.0, section 4, Plugin delegation",
    ),
    Requirement::new(
        "DEL-07",
        Interop,
        Versions::since(Version::V0_3_0),
        "DEL of an attachment that never existed succeeds.",
        "containerd (go-cni); nerdctl",
    ),
    Requirement::new(
        "DEL-08",
        Interop,
        Versions::ALL,
        "DEL does its work even if a part of the configuration or of CNI_ARGS that it does not need is \
         invalid.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "DEL-09",
        Interop,
        Versions::ALL,
        "The error of a DEL that could not clean up contains neither `not found` nor `no such file or \
         directory`, which callers take for success.",
        "containerd (go-cni)",
    ),
];

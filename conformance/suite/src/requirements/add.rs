//! Requirements on ADD.

use crate::requirement::Level::{Interop, Must, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "ADD-01",
        Should,
        Versions::ALL,
        "ADD makes the interface CNI_IFNAME in the namespace CNI_NETNS, or changes it.",
        "SPEC, section 2, CNI operations: ADD; older: Overview",
    ),
    Requirement::new(
        "ADD-02",
        Must,
        Versions::ALL,
        "ADD prints a result that describes its changes.",
        "SPEC, section 2, CNI operations: ADD; older: Result",
    ),
    Requirement::new(
        "ADD-03",
        Must,
        Versions::since(Version::V1_0_0),
        "A plugin that makes an interface fails if the name exists already, no matter who made that \
         interface.",
        "SPEC 1.0.0, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "ADD-04",
        Must,
        Versions::ALL,
        "After a failed ADD, DEL removes everything that the ADD left behind.",
        "SPEC, section 2, CNI operations: ADD and DEL; older: Parameters",
    ),
    Requirement::new(
        "ADD-05",
        Must,
        Versions::since(Version::V0_4_0),
        "A second ADD of an existing attachment does not damage the attachment. It need not succeed.",
        "SPEC, section 2, CNI operations: ADD; 0.4.0: General considerations",
    ),
    Requirement::new(
        "ADD-06",
        Should,
        Versions::since(Version::V0_4_0),
        "State is kept per network, container ID and interface name, so that a container can be attached \
         to a network twice.",
        "SPEC 1.0.0, section 3, Lifecycle & Ordering; 0.4.0: General considerations",
    ),
    Requirement::new(
        "ADD-07",
        Must,
        Versions::until(Version::V0_4_0),
        "Routes are added with metric 0, and an existing default route of another network does not make ADD \
         fail.",
        "SPEC 0.1.0 to 0.4.0, Result and IP Allocation",
    ),
    Requirement::new(
        "ADD-08",
        Interop,
        Versions::ALL,
        "DEL can remove what a plugin leaves behind that was killed at any point.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "ADD-09",
        Interop,
        Versions::ALL,
        "ADD ends well within the time limits of callers.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
];

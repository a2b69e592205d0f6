//! What ADD does.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, Must, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "ADD-01",
        Should,
        Versions::ALL,
        "ADD makes the interface CNI_IFNAME in the namespace CNI_NETNS, or adjusts it.",
        "SPEC, section 2, CNI operations: ADD; older: Overview",
    ),
    Requirement::new(
        "ADD-02",
        Must,
        Versions::ALL,
        "ADD prints a result that describes what it did.",
        "SPEC, section 2, CNI operations: ADD; older: Result",
    ),
    Requirement::new(
        "ADD-03",
        Must,
        Versions::since(Version::V1_0_0),
        "A plugin that makes an interface fails if there is one of that name, whoever made it.",
        "SPEC 1.0.0, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "ADD-04",
        Must,
        Versions::ALL,
        "After an ADD that failed, DEL removes everything that it left.",
        "SPEC, section 2, CNI operations: ADD and DEL; older: Parameters",
    ),
    Requirement::new(
        "ADD-05",
        Must,
        Versions::since(Version::V0_4_0),
        "ADD of an attachment that is there already does that attachment no harm. It need not succeed.",
        "SPEC, section 2, CNI operations: ADD; 0.4.0: General considerations",
    ),
    Requirement::new(
        "ADD-06",
        Should,
        Versions::since(Version::V0_4_0),
        "State is kept by network, container ID and interface name, so that a container can be attached \
         to a network twice.",
        "SPEC 1.0.0, section 3, Lifecycle & Ordering; 0.4.0: General considerations",
    ),
    Requirement::new(
        "ADD-07",
        Must,
        Versions::until(Version::V0_4_0),
        "Routes are added with metric 0, and a default route of another network does not make ADD fail.",
        "SPEC 0.1.0 to 0.4.0, Result and IP Allocation",
    ),
    Requirement::new(
        "ADD-08",
        Interop,
        Versions::ALL,
        "A plugin killed at any moment leaves what DEL can remove.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "ADD-09",
        Interop,
        Versions::ALL,
        "ADD is done well within the time that callers allow.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
];

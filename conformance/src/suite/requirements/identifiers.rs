//! Container IDs, interface names and namespaces.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, Must, Reference, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CID-01",
        Must,
        Versions::since(Version::V1_0_0),
        "A container ID begins with a letter or digit of ASCII, and goes on with letters, digits, `_`, \
         `.` and `-`. Any other is refused.",
        "SPEC 1.0.0, section 2, Parameters",
    ),
    Requirement::new(
        "CID-02",
        Must,
        Versions::since(Version::V1_0_0),
        "A container ID that is not valid is an error with code 4, at ADD, CHECK and DEL.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "CID-03",
        Reference,
        Versions::ALL,
        "A container ID may have any length.",
        "containernetworking/cni, pkg/skel",
    ),
    Requirement::new(
        "IFN-01",
        Must,
        Versions::ALL,
        "An interface name is one that Linux allows: up to 15 bytes, neither `.` nor `..`, without `/`, \
         `:` and white space. Any other is refused.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "IFN-02",
        Must,
        Versions::since(Version::V0_3_0),
        "The interface gets exactly the name in CNI_IFNAME, or ADD fails and leaves no other behind.",
        "SPEC, section 2, Parameters; 0.3.0: Parameters",
    ),
    Requirement::new(
        "IFN-03",
        Must,
        Versions::since(Version::V1_0_0),
        "ADD fails if an interface of that name is in the container already, and leaves it as it is.",
        "SPEC 1.0.0, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "IFN-04",
        Reference,
        Versions::ALL,
        "A name that only the kernel refuses, such as `all`, ends in a proper error and leaves nothing \
         behind.",
        "containernetworking/plugins",
    ),
    Requirement::new(
        "NNS-01",
        Must,
        Versions::ALL,
        "CNI_NETNS is any path to a network namespace: below /proc, a bind mount, or by way of a symbolic \
         link.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "NNS-02",
        Must,
        Versions::ALL,
        "ADD and CHECK fail if nothing is at the path, or something that is no network namespace, and \
         change nothing.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "NNS-03",
        Should,
        Versions::since(Version::V1_0_0),
        "The `sandbox` of an interface in the container is CNI_NETNS as it was given.",
        "SPEC 1.0.0, section 5, ADD Success",
    ),
    Requirement::new(
        "NNS-04",
        Reference,
        Versions::ALL,
        "A CNI_NETNS that is the plugin's own namespace is refused before anything is done there.",
        "containernetworking/cni, pkg/skel",
    ),
    Requirement::new(
        "NNS-05",
        Must,
        Versions::since(Version::V0_4_0),
        "DEL succeeds with a path where nothing is left, and with none.",
        "SPEC 1.0.0, section 2, CNI operations: DEL; 0.4.0: Parameters",
    ),
    Requirement::new(
        "NNS-06",
        Interop,
        Versions::ALL,
        "A plugin creates nothing at the path in CNI_NETNS.",
        "containerd (go-cni); nerdctl",
    ),
];

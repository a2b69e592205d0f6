//! Requirements on container IDs, interface names and network namespaces.

use crate::requirement::Level::{Interop, Must, Reference, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CID-01",
        Must,
        Versions::since(Version::V1_0_0),
        "A container ID begins with an ASCII letter or digit, followed by ASCII letters, digits, `_`, \
         `.` and `-`. Any other ID is refused.",
        "SPEC 1.0.0, section 2, Parameters",
    ),
    Requirement::new(
        "CID-02",
        Must,
        Versions::since(Version::V1_0_0),
        "An invalid container ID is an error with code 4 at ADD, CHECK and DEL.",
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
        "An interface name is valid for Linux: 1 to 15 bytes, neither `.` nor `..`, without `/`, \
         `:` and white space. Any other name is refused.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "IFN-02",
        Must,
        Versions::since(Version::V0_3_0),
        "The interface gets exactly the name in CNI_IFNAME, or ADD fails and leaves no other interface \
         behind.",
        "SPEC, section 2, Parameters; 0.3.0: Parameters",
    ),
    Requirement::new(
        "IFN-03",
        Must,
        Versions::since(Version::V1_0_0),
        "ADD fails if the container already has an interface of that name, and leaves that interface \
         unchanged.",
        "SPEC 1.0.0, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "IFN-04",
        Reference,
        Versions::ALL,
        "A name that only the kernel refuses, such as `all`, causes a proper error, and ADD leaves nothing \
         behind.",
        "containernetworking/plugins",
    ),
    Requirement::new(
        "NNS-01",
        Must,
        Versions::ALL,
        "CNI_NETNS may be any path to a network namespace: below /proc, a bind mount, or through a symbolic \
         link.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "NNS-02",
        Must,
        Versions::ALL,
        "ADD and CHECK fail and change nothing if the path does not exist or is not a network \
         namespace.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "NNS-03",
        Should,
        Versions::since(Version::V1_0_0),
        "The `sandbox` of an interface in the container is CNI_NETNS, unchanged.",
        "SPEC 1.0.0, section 5, ADD Success",
    ),
    Requirement::new(
        "NNS-04",
        Reference,
        Versions::ALL,
        "A CNI_NETNS that is the plugin's own namespace is refused before the plugin changes anything.",
        "containernetworking/cni, pkg/skel",
    ),
    Requirement::new(
        "NNS-05",
        Must,
        Versions::since(Version::V0_4_0),
        "DEL succeeds if the path in CNI_NETNS does not exist, and without CNI_NETNS.",
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

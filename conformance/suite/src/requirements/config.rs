//! Requirements on the configuration on standard input and the network's name.

use crate::requirement::Level::{Interop, May, Must, Reference, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CFG-01",
        Must,
        Versions::ALL,
        "The configuration is one JSON object on standard input. The plugin reads it to the end, in however \
         many pieces it arrives.",
        "SPEC, section 2, Execution protocol; older: Parameters",
    ),
    Requirement::new(
        "CFG-02",
        Must,
        Versions::since(Version::V1_0_0),
        "Input that cannot be decoded as a configuration is an error with code 6.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "CFG-03",
        Must,
        Versions::since(Version::V1_0_0),
        "Standard input that cannot be read is an error with code 5.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "CFG-04",
        May,
        Versions::since(Version::V0_2_0),
        "A plugin may refuse an unknown field, with code 2.",
        "SPEC 1.0.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "CFG-05",
        Should,
        Versions::since(Version::V0_2_0),
        "Keys below `args` that a plugin does not know are not an error.",
        "SPEC, section 1, Network configuration format; 0.2.0: Network Configuration",
    ),
    Requirement::new(
        "CFG-06",
        Interop,
        Versions::ALL,
        "`capabilities`, which runtimes leave in the configuration, has no effect on a plugin.",
        "libcni",
    ),
    Requirement::new(
        "CFG-07",
        Must,
        Versions::since(Version::V1_0_0),
        "Keys that begin with `cni.dev/` are reserved for the protocol. A plugin ignores those that it does \
         not know.",
        "SPEC 1.0.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "CFG-08",
        Interop,
        Versions::ALL,
        "Keys are case-insensitive: `HostPort` is `hostPort`.",
        "containerd (go-cni); nerdctl",
    ),
    Requirement::new(
        "CFG-09",
        Interop,
        Versions::ALL,
        "`null` for any value means that the value is absent.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CFG-10",
        Interop,
        Versions::ALL,
        "The order of keys, white space and escapes in strings have no meaning.",
        "libcni",
    ),
    Requirement::new(
        "CFG-11",
        Interop,
        Versions::ALL,
        "Sizes and rates may be numbers of more than 32 bits.",
        "CRI-O (ocicni)",
    ),
    Requirement::new(
        "CFG-12",
        May,
        Versions::ALL,
        "`type` is required in a configuration and names the binary. A plugin may or may not refuse a \
         configuration without it.",
        "SPEC, section 1, Network configuration format",
    ),
    Requirement::new(
        "CFG-13",
        Should,
        Versions::ALL,
        "`ipMasq`, `ipam` and `dns` have the meaning that the specification defines, in a plugin that \
         supports them.",
        "SPEC, section 1, Network configuration format; older: Network Configuration",
    ),
    Requirement::new(
        "CFG-14",
        Must,
        Versions::since(Version::V1_0_0),
        "The `type` of a delegate contains no `/`; a plugin starts no program whose name contains one.",
        "SPEC 1.0.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "CFG-15",
        Interop,
        Versions::ALL,
        "An `ipam` that is absent, `null`, `{}` or has an empty `type` means that there is no IPAM plugin.",
        "podman",
    ),
    Requirement::new(
        "CFG-16",
        Interop,
        Versions::ALL,
        "An empty string for an address means that the address is absent.",
        "containerd (go-cni); nerdctl",
    ),
    Requirement::new(
        "CFG-17",
        Reference,
        Versions::ALL,
        "An IPv4 address with leading zeros in one of its numbers is refused.",
        "containernetworking/plugins",
    ),
    Requirement::new(
        "NET-01",
        Must,
        Versions::ALL,
        "A configuration has a `name`. A missing or empty name is an error with code 7.",
        "SPEC, section 1, Network configuration format; section 5, Error",
    ),
    Requirement::new(
        "NET-02",
        Must,
        Versions::since(Version::V1_0_0),
        "A network's name begins with an ASCII letter or digit, followed by ASCII letters, digits, `_`, \
         `.` and `-`. Any other name is refused.",
        "SPEC 1.0.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "NET-03",
        Reference,
        Versions::ALL,
        "A network's name may have any length.",
        "containernetworking/cni, pkg/skel",
    ),
];

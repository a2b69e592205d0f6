//! The configuration on standard input, and the network's name.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, May, Must, Reference, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CFG-01",
        Must,
        Versions::ALL,
        "The configuration is one JSON object on standard input, read to the end however it is delivered.",
        "SPEC, section 2, Execution protocol; older: Parameters",
    ),
    Requirement::new(
        "CFG-02",
        Must,
        Versions::since(Version::V1_0_0),
        "What cannot be decoded as a configuration is an error with code 6.",
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
        "A plugin may refuse a field that it does not know, with code 2.",
        "SPEC 1.0.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "CFG-05",
        Should,
        Versions::since(Version::V0_2_0),
        "What a plugin does not understand below `args` is no reason to fail.",
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
        "Keys that begin with `cni.dev/` are reserved for the protocol; those that a plugin does not know \
         do not disturb it.",
        "SPEC 1.0.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "CFG-08",
        Interop,
        Versions::ALL,
        "Keys are recognised whatever their case: `HostPort` is `hostPort`.",
        "containerd (go-cni); nerdctl",
    ),
    Requirement::new(
        "CFG-09",
        Interop,
        Versions::ALL,
        "`null` in place of any value means that it is absent.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CFG-10",
        Interop,
        Versions::ALL,
        "Neither the order of keys, nor white space, nor escapes in texts matter.",
        "libcni",
    ),
    Requirement::new(
        "CFG-11",
        Interop,
        Versions::ALL,
        "Numbers beyond 32 bits are understood where sizes and rates are expected.",
        "CRI-O (ocicni)",
    ),
    Requirement::new(
        "CFG-12",
        May,
        Versions::ALL,
        "`type` is required in a configuration and names the binary. Whether a plugin refuses one without \
         it is left to the plugin.",
        "SPEC, section 1, Network configuration format",
    ),
    Requirement::new(
        "CFG-13",
        Should,
        Versions::ALL,
        "`ipMasq`, `ipam` and `dns` have the meaning that the specification gives them in a plugin that \
         heeds them.",
        "SPEC, section 1, Network configuration format; older: Network Configuration",
    ),
    Requirement::new(
        "CFG-14",
        Must,
        Versions::since(Version::V1_0_0),
        "The `type` of a delegate contains no `/`, and a plugin runs nothing by a name that does.",
        "SPEC 1.0.0, section 1, Network configuration format",
    ),
    Requirement::new(
        "CFG-15",
        Interop,
        Versions::ALL,
        "`ipam` absent, `null`, `{}` and of an empty `type` all mean that no IPAM plugin is wanted.",
        "podman",
    ),
    Requirement::new(
        "CFG-16",
        Interop,
        Versions::ALL,
        "An empty string in place of an address means that it is absent.",
        "containerd (go-cni); nerdctl",
    ),
    Requirement::new(
        "CFG-17",
        Reference,
        Versions::ALL,
        "An IPv4 address with leading zeros in a part of it is refused.",
        "containernetworking/plugins",
    ),
    Requirement::new(
        "NET-01",
        Must,
        Versions::ALL,
        "A configuration has a `name`. One without it, or with an empty one, is an error with code 7.",
        "SPEC, section 1, Network configuration format; section 5, Error",
    ),
    Requirement::new(
        "NET-02",
        Must,
        Versions::since(Version::V1_0_0),
        "A network's name begins with a letter or digit of ASCII, and goes on with letters, digits, `_`, \
         `.` and `-`. Any other is refused.",
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

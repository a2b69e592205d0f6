//! Requirements on runtimeConfig, `args` and CNI_ARGS.

use crate::requirement::Level::{Convention, Interop, Must, Reference, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CAP-01",
        Convention,
        Versions::since(Version::V0_3_0),
        "`portMappings` in runtimeConfig is a list of host port, container port, protocol and, optionally, \
         host address.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-02",
        Convention,
        Versions::ALL,
        "`ipRanges` in runtimeConfig is a list of lists of address ranges, which come before those of \
         the configuration.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-03",
        Convention,
        Versions::since(Version::V0_3_0),
        "`bandwidth` in runtimeConfig has rates in bits per second and bursts in bits for each direction.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-04",
        Convention,
        Versions::ALL,
        "`dns` in runtimeConfig has servers, search domains and options.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin that the suite knows takes name servers from the runtime"),
    Requirement::new(
        "CAP-05",
        Convention,
        Versions::ALL,
        "`ips` in runtimeConfig is a list of requested addresses, with or without a prefix length.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-06",
        Convention,
        Versions::ALL,
        "`mac` in runtimeConfig is the hardware address for the interface.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-07",
        Convention,
        Versions::ALL,
        "`infinibandGUID` in runtimeConfig is the GUID for the interface.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin that the suite knows makes InfiniBand interfaces"),
    Requirement::new(
        "CAP-08",
        Convention,
        Versions::ALL,
        "`deviceID` in runtimeConfig is the device to move into the container.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin that the suite knows moves devices"),
    Requirement::new(
        "CAP-09",
        Convention,
        Versions::ALL,
        "`aliases` in runtimeConfig are names of the container on a network.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin that the suite knows resolves names"),
    Requirement::new(
        "CAP-10",
        Convention,
        Versions::ALL,
        "`cgroupPath` in runtimeConfig is the path of the pod's control group.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin that the suite knows uses control groups"),
    Requirement::new(
        "CAP-11",
        Interop,
        Versions::ALL,
        "A plugin ignores `io.kubernetes.cri.pod-annotations` in runtimeConfig, a map or `null`.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "CAP-20",
        Convention,
        Versions::ALL,
        "A plugin fails if a field of runtimeConfig that it supports is malformed or requests something that \
         it cannot do.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-21",
        Convention,
        Versions::ALL,
        "If a capability is absent from runtimeConfig, nothing is requested; that is not an error.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "ARG-01",
        Must,
        Versions::ALL,
        "CNI_ARGS is a list of `KEY=VALUE`, separated by semicolons.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "ARG-02",
        Reference,
        Versions::ALL,
        "An unknown key of CNI_ARGS is an error unless `IgnoreUnknown` is `1` or \
         `true`, at any position.",
        "containernetworking/cni, pkg/types",
    ),
    Requirement::new(
        "ARG-03",
        Convention,
        Versions::ALL,
        "`IP` in CNI_ARGS requests an address from an IPAM plugin.",
        "CONVENTIONS, CNI_ARGS",
    ),
    Requirement::new(
        "ARG-04",
        Interop,
        Versions::ALL,
        "The arguments that Kubernetes runtimes send are accepted in any order.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "ARG-05",
        Convention,
        Versions::ALL,
        "If both `args` and CNI_ARGS set a value, a plugin that supports `args` uses it.",
        "CONVENTIONS, CNI_ARGS",
    ),
    Requirement::new(
        "JARG-01",
        Should,
        Versions::since(Version::V0_2_0),
        "`labels` and `ips` in `args.cni` take effect in plugins that support them; other plugins ignore \
         them.",
        "CONVENTIONS, \"args\" in network config",
    ),
];

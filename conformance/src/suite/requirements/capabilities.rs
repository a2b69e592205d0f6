//! What a runtime adds to the configuration, and arguments.

use crate::runner::Version;
use crate::suite::requirement::Level::{Convention, Interop, Must, Reference, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CAP-01",
        Convention,
        Versions::since(Version::V0_3_0),
        "`portMappings` in runtimeConfig is a list of host port, container port, protocol and, if wanted, \
         host address to forward.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-02",
        Convention,
        Versions::ALL,
        "`ipRanges` in runtimeConfig is a list of lists of ranges to take addresses from, before those of \
         the configuration.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-03",
        Convention,
        Versions::since(Version::V0_3_0),
        "`bandwidth` in runtimeConfig holds rates in bits per second and bursts in bits, for each direction.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-04",
        Convention,
        Versions::ALL,
        "`dns` in runtimeConfig holds servers, search domains and options.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin of this suite takes name servers from the runtime"),
    Requirement::new(
        "CAP-05",
        Convention,
        Versions::ALL,
        "`ips` in runtimeConfig is a list of addresses asked for, with or without a prefix length.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-06",
        Convention,
        Versions::ALL,
        "`mac` in runtimeConfig is the hardware address that the interface is to have.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-07",
        Convention,
        Versions::ALL,
        "`infinibandGUID` in runtimeConfig is the GUID that the interface is to have.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin of this suite makes InfiniBand interfaces"),
    Requirement::new(
        "CAP-08",
        Convention,
        Versions::ALL,
        "`deviceID` in runtimeConfig is the device that is to be moved into the container.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin of this suite moves devices"),
    Requirement::new(
        "CAP-09",
        Convention,
        Versions::ALL,
        "`aliases` in runtimeConfig holds names by which the container is known on a network.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin of this suite serves names"),
    Requirement::new(
        "CAP-10",
        Convention,
        Versions::ALL,
        "`cgroupPath` in runtimeConfig is the path of the pod's control group.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    )
    .unproven("no plugin of this suite heeds control groups"),
    Requirement::new(
        "CAP-11",
        Interop,
        Versions::ALL,
        "`io.kubernetes.cri.pod-annotations` in runtimeConfig, a map or `null`, does not disturb a plugin.",
        "containerd (go-cni); CRI-O (ocicni)",
    ),
    Requirement::new(
        "CAP-20",
        Convention,
        Versions::ALL,
        "A plugin fails if a field of runtimeConfig that it heeds is malformed or asks for what it cannot \
         do.",
        "CONVENTIONS, Dynamic Plugin specific fields (Capabilities / Runtime Configuration)",
    ),
    Requirement::new(
        "CAP-21",
        Convention,
        Versions::ALL,
        "A capability that is absent from runtimeConfig means that nothing was asked for, and is no error.",
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
        "A key of CNI_ARGS that a plugin does not know is an error unless `IgnoreUnknown` is `1` or \
         `true`, wherever it stands.",
        "containernetworking/cni, pkg/types",
    ),
    Requirement::new(
        "ARG-03",
        Convention,
        Versions::ALL,
        "`IP` in CNI_ARGS asks an IPAM plugin for an address.",
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
        "What comes both by `args` and by CNI_ARGS is taken from `args` by a plugin that understands them.",
        "CONVENTIONS, CNI_ARGS",
    ),
    Requirement::new(
        "JARG-01",
        Should,
        Versions::since(Version::V0_2_0),
        "`labels` and `ips` in `args.cni` are honoured by plugins that understand them, and disregarded \
         by others.",
        "CONVENTIONS, \"args\" in network config",
    ),
];

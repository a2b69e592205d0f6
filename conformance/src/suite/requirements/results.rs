//! The shape of results, and their conversion from version to version.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, May, Must, Reference, Should};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "RES-01",
        Must,
        Versions::ALL,
        "A result has `cniVersion`, equal to that of the configuration, and 0.1.0 if that has none.",
        "SPEC, section 5, Result types; older: Result",
    ),
    Requirement::new(
        "RES-02",
        Must,
        Versions::until(Version::V0_2_0),
        "A result has an address, and no more than one of each family.",
        "SPEC 0.1.0 and 0.2.0, Result",
    ),
    Requirement::new(
        "RES-03",
        Must,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "Each entry of `ips` has a `version`, `4` or `6`, that fits its address and gateway.",
        "SPEC 0.3.0 to 0.4.0, Result",
    ),
    Requirement::new(
        "RES-04",
        Must,
        Versions::since(Version::V1_0_0),
        "No entry of `ips` has a `version`.",
        "SPEC 1.0.0, section 5, ADD Success",
    ),
    Requirement::new(
        "RES-05",
        Must,
        Versions::since(Version::V0_3_0),
        "The `address` of each entry of `ips` is in CIDR notation and keeps the part that is the host's.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-06",
        Must,
        Versions::since(Version::V0_3_0),
        "The `interface` of an entry of `ips` is the index of an entry of `interfaces`.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-07",
        Must,
        Versions::since(Version::V0_3_0),
        "A plugin that makes an interface gives the `interface` of every address that it configured.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-08",
        Must,
        Versions::since(Version::V0_3_0),
        "`sandbox` is set for interfaces in the container, and empty or absent for those of the host.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-09",
        Must,
        Versions::since(Version::V0_3_0),
        "`mac` is the interface's hardware address wherever it has one.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-10",
        Must,
        Versions::since(Version::V0_3_0),
        "`interfaces` lists every interface that the attachment made, those of the host included.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-11",
        Must,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "All addresses of one entry of `routes` are of one family.",
        "SPEC 0.3.0 to 0.4.0, Result",
    ),
    Requirement::new(
        "RES-12",
        Must,
        Versions::ALL,
        "A `gateway` informs and does not ask for a route. No default route appears unless one was asked \
         for.",
        "SPEC, section 5, ADD Success; older: IP Allocation",
    ),
    Requirement::new(
        "RES-13",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "`mtu`, `advmss`, `priority`, `table` and `scope` of a route are numbers without sign, and are \
         handed on as they are.",
        "SPEC 1.1.0, section 5, ADD Success",
    ),
    Requirement::new(
        "RES-14",
        May,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "An entry of `interfaces` may have its `mtu`.",
        "SPEC 1.1.0, section 5, ADD Success",
    ),
    Requirement::new(
        "RES-15",
        Must,
        Versions::until(Version::V1_0_0),
        "A result has no field that only a later version knows.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-16",
        Reference,
        Versions::ALL,
        "Lists of a result that are empty are left out. `dns` is always there before 1.0.0.",
        "containernetworking/cni, pkg/types",
    ),
    Requirement::new(
        "RES-17",
        Must,
        Versions::since(Version::V1_0_0),
        "The result of an IPAM plugin has neither `interfaces` nor an `interface` in an entry of `ips`.",
        "SPEC 1.0.0, section 5, Delegated plugins (IPAM)",
    ),
    Requirement::new(
        "RES-18",
        Should,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "`ips` and `dns` of a plugin that makes an interface are those of its IPAM plugin, save for the \
         `interface` that it adds.",
        "SPEC 0.3.0 to 0.4.0, IP Allocation",
    ),
    Requirement::new(
        "CONV-01",
        Interop,
        Versions::until(Version::V0_2_0),
        "Results of 0.1.0 and 0.2.0 become each other without any other change than `cniVersion`.",
        "libcni",
    ),
    Requirement::new(
        "CONV-02",
        Interop,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "From a result of 0.1.0 or 0.2.0, `ip4` and then `ip6` become `ips`; their routes, those of IPv4 \
         first, become `routes`; `dns` stays.",
        "libcni",
    ),
    Requirement::new(
        "CONV-03",
        Interop,
        Versions::until(Version::V0_2_0),
        "From a result of 0.3.0 to 0.4.0, the first address of each family becomes `ip4` and `ip6`, each \
         with the routes of its family. One without any address cannot be converted and is an error.",
        "libcni",
    ),
    Requirement::new(
        "CONV-04",
        Interop,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "Results of 0.3.0, 0.3.1 and 0.4.0 become each other without loss.",
        "libcni",
    ),
    Requirement::new(
        "CONV-05",
        Interop,
        Versions::since(Version::V1_0_0),
        "A result of 0.3.0 to 0.4.0 keeps everything but the `version` of its addresses.",
        "libcni",
    ),
    Requirement::new(
        "CONV-06",
        Interop,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "A result of 1.0.0 or later gains the `version` of each address, and its interfaces lose `mtu`, \
         `socketPath` and `pciID`.",
        "libcni",
    ),
    Requirement::new(
        "CONV-07",
        Interop,
        Versions::since(Version::V1_0_0),
        "Results of 1.0.0 and 1.1.0 become each other with all that both know.",
        "libcni",
    ),
    Requirement::new(
        "CONV-08",
        Interop,
        Versions::until(Version::V0_2_0),
        "A result of 1.0.0 or later is converted as one of 0.4.0 would be.",
        "libcni",
    ),
    Requirement::new(
        "CONV-09",
        Reference,
        Versions::ALL,
        "A result that is of the wanted version already loses nothing of what that version knows.",
        "containernetworking/cni, pkg/types",
    ),
    Requirement::new(
        "CONV-10",
        Reference,
        Versions::ALL,
        "Addresses are printed in their canonical form, empty gateways and unknown keys are left out.",
        "containernetworking/cni, pkg/types",
    ),
    Requirement::new(
        "CONV-11",
        Interop,
        Versions::since(Version::V0_3_0),
        "A result handed to a plugin without `cniVersion` is of the configuration's version. One of a \
         version with another shape is an error.",
        "libcni",
    ),
];

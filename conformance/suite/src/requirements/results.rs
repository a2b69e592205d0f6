//! Requirements on the layout of results and on their conversion between versions.

use crate::requirement::Level::{Interop, May, Must, Reference, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "RES-01",
        Must,
        Versions::ALL,
        "A result has a `cniVersion` that equals that of the configuration, or 0.1.0 if the configuration \
         has none.",
        "SPEC, section 5, Result types; older: Result",
    ),
    Requirement::new(
        "RES-02",
        Must,
        Versions::until(Version::V0_2_0),
        "A result has at least one address and at most one of each family.",
        "SPEC 0.1.0 and 0.2.0, Result",
    ),
    Requirement::new(
        "RES-03",
        Must,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "Each entry of `ips` has a `version`, `4` or `6`, that matches its address and gateway.",
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
        "The `address` of each entry of `ips` is in CIDR notation and keeps its host part.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-06",
        Must,
        Versions::since(Version::V0_3_0),
        "The `interface` of an entry of `ips` is an index into `interfaces`.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-07",
        Must,
        Versions::since(Version::V0_3_0),
        "A plugin that makes an interface sets `interface` for every address that it configured.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-08",
        Must,
        Versions::since(Version::V0_3_0),
        "`sandbox` is set for interfaces in the container, and empty or absent for interfaces of the host.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-09",
        Must,
        Versions::since(Version::V0_3_0),
        "`mac` is the interface's hardware address if the interface has one.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-10",
        Must,
        Versions::since(Version::V0_3_0),
        "`interfaces` lists every interface that the plugin made for the attachment, including those of the \
         host.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-11",
        Must,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "All addresses of an entry of `routes` have the same family.",
        "SPEC 0.3.0 to 0.4.0, Result",
    ),
    Requirement::new(
        "RES-12",
        Must,
        Versions::ALL,
        "A `gateway` is information only and adds no route. A default route is added only if it was \
         requested.",
        "SPEC, section 5, ADD Success; older: IP Allocation",
    ),
    Requirement::new(
        "RES-13",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "`mtu`, `advmss`, `priority`, `table` and `scope` of a route are unsigned numbers and are \
         passed on unchanged.",
        "SPEC 1.1.0, section 5, ADD Success",
    ),
    Requirement::new(
        "RES-14",
        May,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "An entry of `interfaces` may have an `mtu`.",
        "SPEC 1.1.0, section 5, ADD Success",
    ),
    Requirement::new(
        "RES-15",
        Must,
        Versions::until(Version::V1_0_0),
        "A result has no field that only later versions define.",
        "SPEC, section 5, ADD Success; older: Result",
    ),
    Requirement::new(
        "RES-16",
        Reference,
        Versions::ALL,
        "Empty lists of a result are left out. Before 1.0.0 `dns` is always present.",
        "containernetworking/cni, pkg/types",
    ),
    Requirement::new(
        "RES-17",
        Must,
        Versions::since(Version::V1_0_0),
        "The result of an IPAM plugin has no `interfaces` and no `interface` in an entry of `ips`.",
        "SPEC 1.0.0, section 5, Delegated plugins (IPAM)",
    ),
    Requirement::new(
        "RES-18",
        Should,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "`ips` and `dns` of a plugin that makes an interface are those of its IPAM plugin, except for the \
         `interface` that it adds.",
        "SPEC 0.3.0 to 0.4.0, IP Allocation",
    ),
    Requirement::new(
        "CONV-01",
        Interop,
        Versions::until(Version::V0_2_0),
        "A conversion between 0.1.0 and 0.2.0 changes only `cniVersion`.",
        "libcni",
    ),
    Requirement::new(
        "CONV-02",
        Interop,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "In a conversion from 0.1.0 or 0.2.0, `ip4` and then `ip6` become `ips`; their routes, those of IPv4 \
         first, become `routes`; `dns` is kept.",
        "libcni",
    ),
    Requirement::new(
        "CONV-03",
        Interop,
        Versions::until(Version::V0_2_0),
        "In a conversion from 0.3.0 to 0.4.0, the first address of each family becomes `ip4` or `ip6`, each \
         with the routes of its family. A result without an address cannot be converted, which is an error.",
        "libcni",
    ),
    Requirement::new(
        "CONV-04",
        Interop,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "Conversions between 0.3.0, 0.3.1 and 0.4.0 lose nothing.",
        "libcni",
    ),
    Requirement::new(
        "CONV-05",
        Interop,
        Versions::since(Version::V1_0_0),
        "A conversion from 0.3.0 to 0.4.0 removes only the `version` of the addresses.",
        "libcni",
    ),
    Requirement::new(
        "CONV-06",
        Interop,
        Versions::between(Version::V0_3_0, Version::V0_4_0),
        "A conversion from 1.0.0 or later adds the `version` of each address and removes `mtu`, \
         `socketPath` and `pciID` of interfaces.",
        "libcni",
    ),
    Requirement::new(
        "CONV-07",
        Interop,
        Versions::since(Version::V1_0_0),
        "Conversions between 1.0.0 and 1.1.0 keep everything that both versions define.",
        "libcni",
    ),
    Requirement::new(
        "CONV-08",
        Interop,
        Versions::until(Version::V0_2_0),
        "A result of 1.0.0 or later is converted like one of 0.4.0.",
        "libcni",
    ),
    Requirement::new(
        "CONV-09",
        Reference,
        Versions::ALL,
        "A result that already has the requested version loses nothing that this version defines.",
        "containernetworking/cni, pkg/types",
    ),
    Requirement::new(
        "CONV-10",
        Reference,
        Versions::ALL,
        "Addresses are printed in canonical form; empty gateways and unknown keys are left out.",
        "containernetworking/cni, pkg/types",
    ),
    Requirement::new(
        "CONV-11",
        Interop,
        Versions::since(Version::V0_3_0),
        "A `prevResult` without `cniVersion` has the configuration's version. One with a version of \
         another layout is an error.",
        "libcni",
    ),
];

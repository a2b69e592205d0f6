//! Requirements on CHECK.

use crate::requirement::Level::{Must, Should};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CHK-01",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK compares with `prevResult` and fails without it.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
    Requirement::new(
        "CHK-02",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK accepts what a later plugin of the chain may have changed, such as further \
         interfaces, addresses and routes.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
    Requirement::new(
        "CHK-03",
        Should,
        Versions::since(Version::V0_4_0),
        "CHECK fails if an interface, address or route of `prevResult` that the plugin made is missing or \
         changed.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
    Requirement::new(
        "CHK-04",
        Should,
        Versions::since(Version::V0_4_0),
        "CHECK fails if other state that the plugin made for the attachment is missing, such as \
         firewall rules, rate limits or a reservation.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
    Requirement::new(
        "CHK-05",
        Should,
        Versions::since(Version::V0_4_0),
        "CHECK fails if the plugin can detect that the container has no connectivity.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
    Requirement::new(
        "CHK-06",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK right after ADD succeeds.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
    Requirement::new(
        "CHK-07",
        Should,
        Versions::since(Version::V0_4_0),
        "CHECK is delegated to the same plugins as ADD and fails with their error.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
    Requirement::new(
        "CHK-08",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK changes nothing and prints nothing if it succeeds.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
];

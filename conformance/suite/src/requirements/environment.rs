//! Requirements on the environment variables of a call.

use crate::requirement::Level::{Interop, May, Must, Reference};
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "ENV-01",
        Must,
        Versions::ALL,
        "A plugin takes its parameters only from the environment and from standard input. It is started \
         without arguments and needs none.",
        "SPEC, section 2, Execution protocol; older: Parameters",
    ),
    Requirement::new(
        "ENV-02",
        Must,
        Versions::ALL,
        "A plugin supports every operation of the versions that it declares: ADD and DEL; VERSION from \
         0.2.0, CHECK from 0.4.0, GC and STATUS from 1.1.0. The names are upper-case; any other spelling is \
         an unknown operation.",
        "SPEC, section 2, CNI operations; older: Parameters",
    ),
    Requirement::new(
        "ENV-03",
        Must,
        Versions::since(Version::V1_0_0),
        "An unknown operation is an error with code 4.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "ENV-04",
        Must,
        Versions::ALL,
        "CNI_COMMAND names the operation. Without it a plugin performs none and prints no \
         result.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "ENV-04a",
        Interop,
        Versions::ALL,
        "The firewall plugin without CNI_COMMAND exits with 0 and writes a line `CNI firewall plugin \
         v<version>` to standard error.",
        "nerdctl",
    ),
    Requirement::new(
        "ENV-05",
        Must,
        Versions::since(Version::V1_0_0),
        "ADD needs CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS and CNI_IFNAME; CNI_ARGS may be \
         absent.",
        "SPEC 1.0.0, section 2, CNI operations: ADD",
    ),
    Requirement::new(
        "ENV-06",
        Must,
        Versions::since(Version::V1_0_0),
        "DEL needs CNI_COMMAND, CNI_CONTAINERID and CNI_IFNAME; CNI_NETNS and CNI_ARGS may be absent.",
        "SPEC 1.0.0, section 2, CNI operations: DEL",
    ),
    Requirement::new(
        "ENV-07",
        Must,
        Versions::since(Version::V0_4_0),
        "CHECK needs the same variables with the same values as ADD; only CNI_PATH may differ.",
        "SPEC 1.0.0, section 2, CNI operations: CHECK; 0.4.0: Parameters",
    ),
    Requirement::new(
        "ENV-08",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC needs CNI_COMMAND and CNI_PATH. The variables that name an attachment may be absent or empty.",
        "SPEC 1.1.0, section 2, CNI operations: GC",
    ),
    Requirement::new(
        "ENV-09",
        Must,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "STATUS needs only CNI_COMMAND. CNI_PATH may be set; the variables that name an attachment \
         may be absent or empty.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "ENV-10",
        Must,
        Versions::since(Version::V0_2_0),
        "VERSION needs only CNI_COMMAND.",
        "SPEC, section 2, CNI operations: VERSION; older: Parameters",
    ),
    Requirement::new(
        "ENV-11",
        May,
        Versions::since(Version::V1_0_0),
        "CNI_PATH may be absent at ADD, CHECK, DEL and STATUS of a plugin that does not delegate.",
        "SPEC 1.0.0, section 2, CNI operations",
    ),
    Requirement::new(
        "ENV-12",
        Must,
        Versions::since(Version::V1_0_0),
        "An error with code 4 names every variable that is missing or invalid.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new("ENV-13", Interop, Versions::ALL, "An empty variable counts as absent.", "libcni"),
    Requirement::new(
        "ENV-14",
        Interop,
        Versions::since(Version::V0_2_0),
        "VERSION ignores the other variables, even if their values are invalid.",
        "libcni",
    ),
    Requirement::new(
        "ENV-15",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC, STATUS and VERSION do not validate the variables that name an attachment.",
        "libcni",
    ),
    Requirement::new(
        "ENV-16",
        May,
        Versions::until(Version::V0_3_1),
        "The container ID is recommended but optional.",
        "SPEC 0.1.0 to 0.3.1, Parameters",
    )
    .unproven(
        "every runtime sends an ID, later versions require it, and a plugin may need one for its own \
         purposes",
    ),
    Requirement::new(
        "ENV-17",
        Interop,
        Versions::between(Version::V0_1_0, Version::V0_1_0),
        "CNI_VERSION, which only 0.1.0 defines, has no effect: the version is that of the configuration.",
        "libcni",
    ),
    Requirement::new(
        "ENV-18",
        Interop,
        Versions::ALL,
        "Other variables, any working directory and a minimal PATH make no difference to a plugin.",
        "libcni; containerd (go-cni)",
    ),
    Requirement::new(
        "ENV-19",
        Reference,
        Versions::ALL,
        "If CNI_NETNS_OVERRIDE is `1` or `true`, a plugin accepts the namespace that it was started in.",
        "containernetworking/cni, pkg/skel",
    ),
    Requirement::new(
        "ENV-20",
        Reference,
        Versions::ALL,
        "With several errors at once, variables are checked first, then reading standard input (5), its \
         syntax (6), the network's name (7) and last the version.",
        "containernetworking/cni, pkg/skel",
    ),
    Requirement::new(
        "ENV-21",
        Must,
        Versions::since(Version::V1_0_0),
        "A plugin is started in the runtime's network namespace. It does its host-side work and starts its \
         delegates in that namespace.",
        "SPEC 1.0.0, section 2, Execution protocol",
    ),
];

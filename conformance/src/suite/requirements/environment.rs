//! What reaches a plugin through its environment.

use crate::runner::Version;
use crate::suite::requirement::Level::{Interop, May, Must, Reference};
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "ENV-01",
        Must,
        Versions::ALL,
        "A plugin takes its parameters from the environment and from standard input only. It is run \
         without arguments and needs none.",
        "SPEC, section 2, Execution protocol; older: Parameters",
    ),
    Requirement::new(
        "ENV-02",
        Must,
        Versions::ALL,
        "A plugin knows every operation of the versions that it declares: ADD and DEL, from 0.2.0 \
         VERSION, from 0.4.0 CHECK, from 1.1.0 GC and STATUS. Their names are in upper case and no other \
         spelling is one of them.",
        "SPEC, section 2, CNI operations; older: Parameters",
    ),
    Requirement::new(
        "ENV-03",
        Must,
        Versions::since(Version::V1_0_0),
        "An operation that is none of CNI's is an error with code 4.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "ENV-04",
        Must,
        Versions::ALL,
        "CNI_COMMAND says which operation is wanted. Without it a plugin carries out none and prints no \
         result.",
        "SPEC, section 2, Parameters",
    ),
    Requirement::new(
        "ENV-04a",
        Interop,
        Versions::ALL,
        "The firewall plugin, run without CNI_COMMAND, ends with 0 and writes a line `CNI firewall plugin \
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
        "CHECK needs the variables that ADD needs, with the values they had then; only CNI_PATH may differ.",
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
        "STATUS needs CNI_COMMAND alone. CNI_PATH may be given, and the variables that name an attachment \
         may be absent or empty.",
        "SPEC 1.1.0, section 2, CNI operations: STATUS",
    ),
    Requirement::new(
        "ENV-10",
        Must,
        Versions::since(Version::V0_2_0),
        "VERSION needs CNI_COMMAND and no other variable.",
        "SPEC, section 2, CNI operations: VERSION; older: Parameters",
    ),
    Requirement::new(
        "ENV-11",
        May,
        Versions::since(Version::V1_0_0),
        "CNI_PATH may be absent at ADD, CHECK, DEL and STATUS of a plugin that delegates nothing.",
        "SPEC 1.0.0, section 2, CNI operations",
    ),
    Requirement::new(
        "ENV-12",
        Must,
        Versions::since(Version::V1_0_0),
        "An error with code 4 names every variable that is missing or not valid.",
        "SPEC 1.0.0, section 5, Error",
    ),
    Requirement::new(
        "ENV-13",
        Interop,
        Versions::ALL,
        "A variable that is empty counts as absent.",
        "libcni",
    ),
    Requirement::new(
        "ENV-14",
        Interop,
        Versions::since(Version::V0_2_0),
        "VERSION disregards what the other variables hold, be it made up or not valid.",
        "libcni",
    ),
    Requirement::new(
        "ENV-15",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "GC, STATUS and VERSION do not judge the values of variables that name an attachment.",
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
        "every runtime sends an ID, later versions demand it, and a plugin may have its own need of \
               one",
    ),
    Requirement::new(
        "ENV-17",
        Interop,
        Versions::between(Version::V0_1_0, Version::V0_1_0),
        "CNI_VERSION, a variable of 0.1.0 alone, has no influence: the configuration says which version \
         is meant.",
        "libcni",
    ),
    Requirement::new(
        "ENV-18",
        Interop,
        Versions::ALL,
        "Other variables, a working directory of any kind and a minimal PATH make no difference to a plugin.",
        "libcni; containerd (go-cni)",
    ),
    Requirement::new(
        "ENV-19",
        Reference,
        Versions::ALL,
        "CNI_NETNS_OVERRIDE set to `1` or `true` lets a plugin work on the namespace that it was started in.",
        "containernetworking/cni, pkg/skel",
    ),
    Requirement::new(
        "ENV-20",
        Reference,
        Versions::ALL,
        "With several mismatches at once, variables are judged first, then the reading of standard input (5), \
         its syntax (6), the network's name (7) and last the version.",
        "containernetworking/cni, pkg/skel",
    ),
    Requirement::new(
        "ENV-21",
        Must,
        Versions::since(Version::V1_0_0),
        "A plugin is started in the runtime's network namespace. It does its work on the host there, and \
         runs what it delegates to from there.",
        "SPEC 1.0.0, section 2, Execution protocol",
    ),
];

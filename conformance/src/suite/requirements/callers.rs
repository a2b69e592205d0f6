//! What runtimes do with plugins, replayed.

use crate::runner::Version;
use crate::suite::requirement::Level::Interop;
use crate::suite::requirement::{Requirement, Versions};

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CALL-01",
        Interop,
        Versions::since(Version::V0_3_1),
        "The life of a pod under containerd works: loopback and the chain added at once, then both \
         deleted, and both deleted again without namespace and result.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CALL-02",
        Interop,
        Versions::since(Version::V0_3_1),
        "After an ADD that failed in the middle of the chain, DEL of all its plugins, without a result, \
         succeeds and cleans up.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CALL-03",
        Interop,
        Versions::since(Version::V0_3_1),
        "After a reboot, DEL with the old result but without a namespace, links or rules succeeds and \
         releases what is on disk.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CALL-04",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "The life of a pod under CRI-O works: VERSION, STATUS, ADD, CHECK at once, DEL, and GC with `null`.",
        "CRI-O (ocicni)",
    ),
    Requirement::new(
        "CALL-05",
        Interop,
        Versions::since(Version::V0_3_1),
        "A restart under nerdctl works: DEL of nothing, ADD, DEL without the namespace, and ADD again \
         with the same container ID.",
        "nerdctl",
    ),
    Requirement::new(
        "CALL-06",
        Interop,
        Versions::since(Version::V0_4_0),
        "The life of a container under podman works: an address and a hardware address by CNI_ARGS, and \
         DEL when the namespace is gone.",
        "podman",
    ),
    Requirement::new(
        "CALL-07",
        Interop,
        Versions::since(Version::V0_3_1),
        "Two networks can be added to one namespace at the same time, as eth0 and eth1.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CALL-08",
        Interop,
        Versions::since(Version::V0_4_0),
        "The operations of cnitool work: ADD, CHECK, GC without a list of attachments, and DEL twice.",
        "cnitool",
    ),
    Requirement::new(
        "CALL-09",
        Interop,
        Versions::since(Version::V0_3_1),
        "The environments and configurations recorded from callers are accepted as they are.",
        "libcni; containerd (go-cni); CRI-O (ocicni); podman; nerdctl; cnitool",
    ),
    Requirement::new(
        "CALL-10",
        Interop,
        Versions::since(Version::V0_3_1),
        "Each of these sequences leaves the node's other state alone.",
        "containerd (go-cni); CRI-O (ocicni); podman; nerdctl; cnitool",
    ),
];

//! Requirements on complete sequences of calls as runtimes make them.

use crate::requirement::Level::Interop;
use crate::requirement::{Requirement, Versions};
use cni_runner::Version;

/// The rows of this section.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement::new(
        "CALL-01",
        Interop,
        Versions::since(Version::V0_3_1),
        "The life of a pod under containerd works: ADD of loopback and the chain at the same time, DEL of \
         both, and a second DEL of both without namespace and result.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CALL-02",
        Interop,
        Versions::since(Version::V0_3_1),
        "After an ADD that failed in the middle of the chain, DEL of all plugins without a result \
         succeeds and cleans up.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CALL-03",
        Interop,
        Versions::since(Version::V0_3_1),
        "After a reboot, DEL with the old result succeeds and releases the state on disk, although the \
         namespace, links and rules are gone.",
        "containerd (go-cni)",
    ),
    Requirement::new(
        "CALL-04",
        Interop,
        Versions::between(Version::V1_1_0, Version::V1_1_0),
        "The life of a pod under CRI-O works: VERSION, STATUS, ADD, CHECK right after it, DEL, and GC with \
         `null`.",
        "CRI-O (ocicni)",
    ),
    Requirement::new(
        "CALL-05",
        Interop,
        Versions::since(Version::V0_3_1),
        "A restart under nerdctl works: DEL without an attachment, ADD, DEL without the namespace, and ADD \
         again with the same container ID.",
        "nerdctl",
    ),
    Requirement::new(
        "CALL-06",
        Interop,
        Versions::since(Version::V0_4_0),
        "The life of a container under podman works: an IP address and a hardware address by CNI_ARGS, and \
         DEL after the namespace is gone.",
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
        "The environments and configurations recorded from callers are accepted unchanged.",
        "libcni; containerd (go-cni); CRI-O (ocicni); podman; nerdctl; cnitool",
    ),
    Requirement::new(
        "CALL-10",
        Interop,
        Versions::since(Version::V0_3_1),
        "None of these sequences changes other state of the node.",
        "containerd (go-cni); CRI-O (ocicni); podman; nerdctl; cnitool",
    ),
];

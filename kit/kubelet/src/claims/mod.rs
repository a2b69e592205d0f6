//! Devices that a pod has by a claim of Dynamic Resource Allocation (DRA).
//!
//! The driver, `ferrule-nic`, writes a [`record`] of each claim and pod before the kubelet starts the pod's sandbox. ADD of the
//! plugin `claims` reads the pod's records from the [`folder`], and [`kubelet_state`] tells it whether one is missing. What ADD
//! has made of them is in an [`attached`] file, until DEL. [`network`] says which configurations a claim may bring along.

mod address;
pub mod attached;
pub mod folder;
pub mod kubelet_state;
pub mod network;
pub mod record;

pub use attached::{Attached, Outcome, Step};
pub use folder::{Folder, Locked};
pub use kubelet_state::KubeletState;
pub use record::{Bus, Claimed, Cni, Link, PodRef, Record, Ref, Route};

/// An object of JSON.
pub type Object = serde_json::Map<String, serde_json::Value>;

/// The name of the driver, unless its configuration names another one.
pub const DRIVER: &str = "nic.ferrule.dev";
/// The folder of all files of claims that are ours.
pub const DATA: &str = "/var/lib/ferrule";
/// The folder of the records in [`DATA`].
pub const RECORDS: &str = "dra";
/// The folder of the attached files in [`DATA`]: a file for each attachment of a pod with claims.
pub const ATTACHED: &str = "dra-attached";
/// The kubelet's file of the claims of its pods, in the kubelet's folder.
pub const KUBELET_STATE: &str = "dra_manager_state";

/// Whether the text is the UID of a pod or a claim, and so the name of a file that leads nowhere else.
pub fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids() {
        for uid in ["0", "0d3c1f2a-7d0b-4e21-8599-62581e335ed6", &"f".repeat(64)] {
            assert!(is_uid(uid), "{uid}");
        }
        for uid in ["", "..", "a/b", "A", "g", "a\n", &"f".repeat(65)] {
            assert!(!is_uid(uid), "{uid}");
        }
    }
}

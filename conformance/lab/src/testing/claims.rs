//! The file in which the kubelet keeps the DRA claims that it has prepared.

use serde_json::{Value, json};

/// The content of the kubelet's `dra_manager_state` (its `ClaimInfoStateList`): claims of the driver `nic.ferrule.dev`, each by its UID
/// and the UID of its pod.
pub fn dra_manager_state(claims: &[(&str, &str)]) -> String {
    let entry = |(claim, pod): &(&str, &str)| {
        json!({"ClaimUID": claim, "ClaimName": format!("nic-{claim}"), "Namespace": "shop", "PodUIDs": {(*pod): {}},
            "DriverState": {"nic.ferrule.dev": {"Devices": null}}})
    };
    let entries: Vec<Value> = claims.iter().map(entry).collect();
    let data = json!({"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": entries});
    json!({"Data": data.to_string(), "Checksum": 1}).to_string()
}

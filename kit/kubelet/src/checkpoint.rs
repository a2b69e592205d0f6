//! The kubelet's checkpoint: the file in which it keeps which pod has which devices. Pure.
//!
//! The kubelet replaces it by a rename before the admission that gives a pod its devices ends. It names pods by UID. Its checksum
//! is not verified: it is a hash of how Go prints the kubelet's own structures, which differ between releases.

use std::collections::BTreeMap;

use cni_common::spec::Json;
use cni_common::spec::json::JsonError;
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ResourceName")]
    resource_name: String,
    /// A list until Kubernetes 1.19, then a map of lists by NUMA node.
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<Json>,
}

/// The IDs of the devices of this resource that the pod has, unsorted and perhaps twice.
///
/// # Errors
/// The file is no checkpoint.
pub fn ids(file: &[u8], pod_uid: &str, resource: &str) -> Result<Vec<String>, JsonError> {
    let data: Data = Json::parse(file)?.get("Data").map_or_else(|| Ok(Data::default()), Json::decode)?;
    let mut ids = Vec::new();
    for entry in data.pod_device_entries {
        let Some(found) =
            entry.device_ids.filter(|_| entry.pod_uid == pod_uid && entry.resource_name == resource)
        else {
            continue;
        };
        match found.is_object() {
            true => ids.extend(found.decode::<BTreeMap<String, Vec<String>>>()?.into_values().flatten()),
            false => ids.extend(found.decode::<Vec<String>>()?),
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kubelet 1.20.2 has written it, with a second container and a second pod. So the checksum is wrong.
    const FILE: &str = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"0d3c","ContainerName":"a","ResourceName":"ferrule.dev/nic","DeviceIDs":{"0":["eth1"],"-1":["eth3"]},"AllocResp":"Eg=="},
        {"PodUID":"0d3c","ContainerName":"b","ResourceName":"ferrule.dev/nic","DeviceIDs":["eth2","eth1"],"AllocResp":""},
        {"PodUID":"0d3c","ContainerName":"b","ResourceName":"ferrule.dev/sfp","DeviceIDs":{"0":["eth8"]},"AllocResp":""},
        {"PodUID":"ffff","ContainerName":"a","ResourceName":"ferrule.dev/nic","DeviceIDs":{"0":["eth9"]},"AllocResp":""}
        ],"RegisteredDevices":{"ferrule.dev/nic":["eth1"]}},"Checksum":3226186620}"#;

    #[test]
    fn ids_of_all_containers_of_the_pod() {
        let ids = |uid, resource| ids(FILE.as_bytes(), uid, resource).unwrap();
        assert_eq!(ids("0d3c", "ferrule.dev/nic"), ["eth3", "eth1", "eth2", "eth1"]);
        assert_eq!(ids("ffff", "ferrule.dev/nic"), ["eth9"]);
        assert!(ids("ffff", "ferrule.dev/sfp").is_empty() && ids("", "ferrule.dev/nic").is_empty());
    }

    #[test]
    fn files_of_kubelets_without_devices_and_torn_files() {
        for file in ["{}", r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#] {
            assert!(ids(file.as_bytes(), "0d3c", "ferrule.dev/nic").unwrap().is_empty());
        }
        for file in ["", &FILE[..200], r#"{"Data":5}"#, &FILE.replace(r#"["eth1"]"#, "7")] {
            assert!(ids(file.as_bytes(), "0d3c", "ferrule.dev/nic").is_err(), "{file}");
        }
    }
}

//! The kubelet's own record of the claims of its pods: the file `dra_manager_state` in the kubelet's folder. Pure.
//!
//! The kubelet (1.32 or later) writes it before it asks a driver to prepare a claim, and removes the claim after the driver has
//! unprepared it. So a claim of a pod is in it from before the sandbox is made until after it has stopped. The checksum is
//! the kubelet's own affair.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::record::Ref;

/// The format of the document inside of the file.
const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// What the file says of one driver's claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletState {
    claims: Vec<(Ref, Vec<String>)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    /// A document inside of the document.
    data: String,
}

/// Go writes an empty list or map as null. A key that is missing is another format: `deserialize_with` makes it an error.
#[derive(Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList", deserialize_with = "Option::deserialize")]
    claims: Option<Vec<Claim>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Claim {
    #[serde(rename = "ClaimUID")]
    claim_uid: String,
    claim_name: String,
    namespace: String,
    #[serde(rename = "PodUIDs", deserialize_with = "Option::deserialize")]
    pod_uids: Option<BTreeMap<String, IgnoredAny>>,
    #[serde(deserialize_with = "Option::deserialize")]
    driver_state: Option<BTreeMap<String, IgnoredAny>>,
}

impl KubeletState {
    /// Reads the file for the claims of this driver.
    ///
    /// # Errors
    /// The file has another format, so nothing is known.
    pub fn parse(file: &[u8], driver: &str) -> Result<Self, String> {
        let text = |error: serde_json::Error| error.to_string();
        let file: File = serde_json::from_slice(file).map_err(text)?;
        let data: Data = serde_json::from_str(&file.data).map_err(|error| format!("Data: {error}"))?;
        if (data.kind.as_str(), data.api_version.as_str()) != (KIND, API_VERSION) {
            let (kind, version) = (data.kind, data.api_version);
            return Err(format!("Data: {kind:?} of {version:?} is not {KIND:?} of {API_VERSION:?}"));
        }
        let of_driver = |claim: &Claim| claim.driver_state.iter().any(|drivers| drivers.contains_key(driver));
        let claim = |claim: Claim| {
            let of = Ref { namespace: claim.namespace, name: claim.claim_name, uid: claim.claim_uid };
            (of, claim.pod_uids.into_iter().flatten().map(|(uid, _)| uid).collect())
        };
        let claims = data.claims.into_iter().flatten().filter(of_driver).map(claim).collect();
        Ok(KubeletState { claims })
    }

    /// All claims, each with the UIDs of its pods.
    pub fn claims(&self) -> impl Iterator<Item = (&Ref, &[String])> {
        self.claims.iter().map(|(claim, pods)| (claim, pods.as_slice()))
    }

    /// The claims of a pod.
    pub fn of_pod(&self, pod_uid: &str) -> impl Iterator<Item = &Ref> {
        self.claims().filter(move |(_, pods)| pods.iter().any(|uid| uid == pod_uid)).map(|(claim, _)| claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Kubernetes 1.36.2 writes it (pkg/kubelet/cm/dra/state), with short UIDs: one claim of ours, one of another driver, and one of both
    /// that two pods have.
    const FILE: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"c1\",\"ClaimName\":\"nic\",\"Namespace\":\"shop\",\"PodUIDs\":{\"0d3c\":{}},\"DriverState\":{\"nic.ferrule.dev\":{\"Devices\":[{\"PoolName\":\"node1\",\"DeviceName\":\"nic0\",\"ShareID\":null,\"RequestNames\":[\"nic\"],\"CDIDeviceIDs\":null}]}}},{\"ClaimUID\":\"c2\",\"ClaimName\":\"gpu\",\"Namespace\":\"shop\",\"PodUIDs\":{\"0d3c\":{}},\"DriverState\":{\"gpu.example.com\":{\"Devices\":null}}},{\"ClaimUID\":\"c3\",\"ClaimName\":\"both\",\"Namespace\":\"shop\",\"PodUIDs\":{\"ffff\":{},\"0d3c\":{}},\"DriverState\":{\"gpu.example.com\":{\"Devices\":null},\"nic.ferrule.dev\":{\"Devices\":null}}}]}","Checksum":1597924435}"#;

    #[test]
    fn the_claims_of_a_pod() {
        let state = KubeletState::parse(FILE.as_bytes(), "nic.ferrule.dev").unwrap();
        let of = |uid| state.of_pod(uid).map(|claim| claim.uid.as_str()).collect::<Vec<_>>();
        assert_eq!((of("0d3c"), of("ffff"), of("0")), (vec!["c1", "c3"], vec!["c3"], vec![]));
        assert_eq!(
            state.claims().map(|(claim, pods)| (claim.name.as_str(), pods.len())).collect::<Vec<_>>(),
            [("nic", 1), ("both", 2)]
        );
        assert_eq!(KubeletState::parse(FILE.as_bytes(), "x").unwrap(), KubeletState::default());
    }

    #[test]
    fn a_kubelet_without_claims() {
        let empty = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":LIST}","Checksum":7}"#;
        for list in ["null", "[]"] {
            let file = empty.replace("LIST", list);
            assert_eq!(KubeletState::parse(file.as_bytes(), "x"), Ok(KubeletState::default()));
        }
    }

    #[test]
    fn files_of_another_format_and_torn_files() {
        for end in 0..FILE.len() {
            assert!(KubeletState::parse(&FILE.as_bytes()[..end], "nic.ferrule.dev").is_err(), "{end} bytes");
        }
        for (old, new) in [
            (r#"\"kind\":\"DRACheckpoint\""#, r#"\"kind\":\"Other\""#),
            (r#"k8s.io/v1\""#, r#"k8s.io/v2\""#),
            (r#"\"ClaimInfoStateList\":["#, r#"\"ClaimInfoStateList\":7,\"x\":["#),
            (r#"\"ClaimInfoStateList\""#, r#"\"Entries\""#),
            (r#"\"PodUIDs\""#, r#"\"Pods\""#),
            (r#"\"DriverState\""#, r#"\"Drivers\""#),
            (r#"\"PodUIDs\":{\"0d3c\":{}}"#, r#"\"PodUIDs\":[\"0d3c\"]"#),
            (r#"\"ClaimUID\":\"c1\""#, r#"\"ClaimUID\":7"#),
            (r#""Data""#, r#""version":"v1","entries""#),
        ] {
            let file = FILE.replacen(old, new, 1);
            assert_ne!(file, FILE);
            assert!(KubeletState::parse(file.as_bytes(), "nic.ferrule.dev").is_err(), "{new}");
        }
    }
}

//! The records of a pod, and whether one is missing.

use std::fs;
use std::io;

use cni_common::spec::{CniError, Code};
use ferrule_kubelet::Pod;
use ferrule_kubelet::claims::{KubeletState, Record, folder, is_uid};

use crate::config::Conf;

/// What helps with a record that cannot be read.
const BROKEN: &str = "remove the named file, then delete the pod: ferrule-nic writes a record when the kubelet prepares the claim for the next pod";

/// The records of the pod; empty if it has no claim of the driver.
///
/// # Errors
/// Code 11 if a claim has no record, or if it is unknown whether the pod has claims. Code 4 if CNI_ARGS does not name the pod and another
/// one has claims.
pub fn records(conf: &Conf, cni_args: &str) -> Result<Vec<Record>, CniError> {
    let pod = Pod::of(cni_args)?.filter(|pod| !pod.uid.is_empty());
    let Some(pod) = pod else { return without_pod(conf) };
    if !is_uid(pod.uid) {
        let msg = format!("K8S_POD_UID={} in CNI_ARGS is no UID of a pod", pod.uid);
        return Err(CniError::new(Code::InvalidEnvironment, msg));
    }
    let records = conf
        .records
        .of_pod(pod.uid)
        .map_err(|error| unknown("read the claims' records", &error).with_remedy(BROKEN))?;
    let records: Vec<Record> = records.into_iter().filter(|record| record.driver == conf.driver).collect();
    let Some(state) = kubelet_state(conf)? else {
        // A kubelet has started the pod, so it has a folder.
        return if records.is_empty() { kubelet_exists(conf).map(|()| records) } else { Ok(records) };
    };
    let mut claims = state.of_pod(pod.uid);
    match claims.find(|claim| !records.iter().any(|record| record.claim.uid == claim.uid)) {
        None => Ok(records),
        Some(claim) => {
            let (namespace, name) = (&claim.namespace, &claim.name);
            let path = conf.records.path().join(pod.uid).join(format!("{}.json", claim.uid));
            let msg =
                format!("claim {namespace}/{name} of pod {pod} has no record of driver {:?}", conf.driver);
            Err(CniError::new(Code::TryAgainLater, msg)
                .with_details(format!("the driver writes {} when it prepares the claim", path.display()))
                .with_remedy("start ferrule-nic on the node, and delete the pod if the kubelet has prepared the claim already"))
        }
    }
}

/// The kubelet's state; `None` if it has written none, and so no pod of it has claims.
///
/// # Errors
/// Code 11 if it cannot be read.
pub fn kubelet_state(conf: &Conf) -> Result<Option<KubeletState>, CniError> {
    let path = conf.kubelet_state();
    let step = "read the kubelet's state of claims";
    let Some(bytes) = folder::read_file(&path).map_err(|error| unknown(step, &error))? else {
        return Ok(None);
    };
    let parsed = KubeletState::parse(&bytes, &conf.driver);
    parsed.map(Some).map_err(|why| {
        let error = unknown(step, &io::Error::other(format!("{}: {why}", path.display())));
        error.with_remedy("the plugin claims needs a kubelet of Kubernetes 1.32 or later")
    })
}

/// A container that is no pod has no claims. If the kubelet's state has none at all, that is proven.
fn without_pod(conf: &Conf) -> Result<Vec<Record>, CniError> {
    match kubelet_state(conf)?.is_some_and(|state| state.claims().next().is_some()) {
        false => Ok(Vec::new()),
        true => Err(CniError::new(Code::InvalidEnvironment, "claims needs K8S_POD_UID in CNI_ARGS").with_details(
            "pods of this node have claims, and without the UID nobody knows whether this container is one",
        )),
    }
}

/// Whether the kubelet's folder exists. Another `--root-dir` must not look like a pod without claims.
fn kubelet_exists(conf: &Conf) -> Result<(), CniError> {
    let failed = |error: io::Error| {
        let msg = format!("look for the kubelet's folder {}: {error}", conf.kubelet.display());
        CniError::invalid_config(msg).with_remedy("name the folder of --root-dir in the key kubeletDir")
    };
    fs::metadata(&conf.kubelet).map(drop).map_err(failed)
}

fn unknown(step: &str, error: &io::Error) -> CniError {
    CniError::new(Code::TryAgainLater, format!("{step}: {error}")).with_details(
        "it is unknown whether the pod has a claim, and a pod must not start without its device",
    )
}

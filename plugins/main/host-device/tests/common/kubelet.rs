//! A kubelet that has given devices to pods.

use std::path::PathBuf;

use cni_lab::Pod;
use cni_lab::testing::overlay;
use cni_runner::Attachment;
use ferrule_fake_kubelet::{PodResourcesSocket, pod};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::config;

pub(crate) const NIC: &str = "ferrule.dev/nic";

/// The folder of the kubelet's socket and checkpoint.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("kubelet.sock")
    }

    /// Starts a kubelet with a pod of the namespace `shop` and its devices.
    pub(crate) fn serve(&self, name: &str, devices: &[&str]) -> PodResourcesSocket {
        let devices: Vec<_> = devices.iter().map(|id| (NIC, *id)).collect();
        PodResourcesSocket::serve(&self.socket(), vec![pod("shop", name, &devices)])
    }

    pub(crate) fn config(&self, keys: &Value) -> Value {
        let own = json!({
            "device": "", "resourceName": NIC, "podResourcesSocket": self.socket(),
            "checkpoint": self.0.path().join("checkpoint")
        });
        config(&overlay(&own, keys))
    }
}

/// The interface `net1` of a pod of the namespace `shop`.
pub(crate) fn attachment(pod: &Pod, name: &str) -> Attachment {
    pod.attachment("net1").with_args(args(name))
}

/// CNI_ARGS of that pod.
pub(crate) fn args(name: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID=uid-{name}")
}

//! Asks which device the pod has: the service, else the checkpoint.

use cni_common::spec::{CniError, Code};
use ferrule_kernel::file;

use crate::pod_resources::{self, LIMIT};
use crate::{Pod, Resource, checkpoint};

impl Resource {
    /// The ID of the device, for ADD. `None` if the pod has none and needs none.
    ///
    /// # Errors
    /// Code 4 if CNI_ARGS names no pod, 11 if the kubelet does not answer, 999 if the pod has no device and needs one.
    pub fn device(&self, cni_args: &str) -> Result<Option<String>, CniError> {
        if !self.given.is_empty() {
            return Ok(Some(self.given.clone()));
        }
        let Some(pod) = Pod::of(cni_args)? else {
            let msg =
                format!("resourceName {:?} needs K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS", self.name);
            return Err(CniError::new(Code::InvalidEnvironment, msg)
                .with_details("only the kubelet knows which device a pod has"));
        };
        let mut ids = self.ids(pod)?;
        // The order of Multus. The kubelet lists a device of two NUMA nodes twice.
        ids.sort();
        ids.dedup();
        match ids.get(self.index) {
            None if self.is_required => Err(self.missing(pod, ids.len())),
            picked => Ok(picked.cloned()),
        }
    }

    /// The IDs of the pod's devices. The service has them, else the checkpoint.
    fn ids(&self, pod: Pod<'_>) -> Result<Vec<String>, CniError> {
        let listed = self.listed(pod);
        if let Ok(Some(ids)) = &listed
            && !ids.is_empty()
        {
            return Ok(ids.clone());
        }
        match (self.checkpointed(pod), listed) {
            (Ok(ids), Ok(_)) => Ok(ids),
            (Ok(ids), Err(_)) if !ids.is_empty() => Ok(ids),
            (_, Err(error)) => Err(error),
            (Err(_), Ok(Some(ids))) => Ok(ids),
            (Err(why), Ok(None)) => {
                let msg = format!("the kubelet lists several pods {pod}");
                Err(CniError::new(Code::TryAgainLater, msg).with_details(why))
            }
        }
    }

    /// As [`pod_resources::ids`].
    fn listed(&self, pod: Pod<'_>) -> Result<Option<Vec<String>>, CniError> {
        let read = || -> Result<_, String> {
            let answer = pod_resources::ask(&self.socket, pod.namespace, pod.name, LIMIT);
            let answer = answer.map_err(|error| error.to_string())?;
            let ids = pod_resources::ids(&answer, pod.namespace, pod.name, &self.name)?;
            Ok(ids.map(|ids| ids.into_iter().map(str::to_owned).collect()))
        };
        read().map_err(|why| {
            let socket = self.socket.display();
            let msg = format!("ask the kubelet for the devices of pod {pod} at {socket}: {why}");
            CniError::new(Code::TryAgainLater, msg).with_details(
                "the key podResourcesSocket names another socket, for a kubelet with --root-dir",
            )
        })
    }

    fn checkpointed(&self, pod: Pod<'_>) -> Result<Vec<String>, String> {
        if pod.uid.is_empty() {
            return Err("K8S_POD_UID is not in CNI_ARGS".to_owned());
        }
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", self.checkpoint.display());
        let bytes = file::read(&self.checkpoint).map_err(|error| failed(&error))?;
        checkpoint::ids(&bytes, pod.uid, &self.name).map_err(|error| failed(&error))
    }

    fn missing(&self, pod: Pod<'_>, count: usize) -> CniError {
        let Resource { name, index, .. } = self;
        let msg = match count {
            0 => format!("pod {pod} has no device of resource {name:?}"),
            _ => format!("pod {pod} has {count} devices of resource {name:?}, and none with index {index}"),
        };
        CniError::internal(msg).with_details(
            "if the pod asks for it, the kubelet has admitted it before the device plugin had registered: delete the pod",
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::resource::tests::resource;

    const ARGS: &str = "K8S_POD_INFRA_CONTAINER_ID=1;K8S_POD_UID=0d3c;IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop";

    #[test]
    fn the_device_of_multus_comes_first() {
        let keys = r#","deviceID":"b","runtimeConfig":{"deviceID":"a"}"#;
        assert_eq!(resource(keys).device(""), Ok(Some("a".to_owned())));
        assert_eq!(resource(r#","deviceID":"b""#).device(""), Ok(Some("b".to_owned())));
    }

    #[test]
    fn cni_args_name_the_pod() {
        let error = resource("").device("").unwrap_err();
        assert_eq!(
            (error.code.number(), error.msg.as_str()),
            (4, r#"resourceName "x/nic" needs K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS"#)
        );
    }

    /// Without a kubelet only the checkpoint can tell.
    #[test]
    fn the_checkpoint_answers_for_a_kubelet_that_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("checkpoint");
        let keys = |more: &str| {
            let socket = folder.path().join("socket");
            format!(r#","podResourcesSocket":{socket:?},"checkpoint":{file:?}{more}"#)
        };
        let error = resource(&keys("")).device(ARGS).unwrap_err();
        assert_eq!(error.code.number(), 11);
        assert!(
            error.msg.contains("devices of pod shop/web at") && error.msg.contains("No such file"),
            "{}",
            error.msg
        );
        let entry = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"0d3c","ResourceName":"x/nic","DeviceIDs":{"0":["e2","e1"]}}]}}"#;
        fs::write(&file, entry).unwrap();
        assert_eq!(resource(&keys("")).device(ARGS), Ok(Some("e1".to_owned())));
        assert_eq!(resource(&keys(r#","index":1"#)).device(ARGS), Ok(Some("e2".to_owned())));
        assert_eq!(resource(&keys(r#","index":2"#)).device(ARGS), Ok(None));
        let error = resource(&keys(r#","index":2,"required":true"#)).device(ARGS).unwrap_err();
        assert_eq!(error.msg, r#"pod shop/web has 2 devices of resource "x/nic", and none with index 2"#);
    }
}

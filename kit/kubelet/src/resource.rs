//! The keys `resourceName`, `index` and `required`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni_common::plugin::AddRequest;
use cni_common::spec::{AddResult, CniError, Json, NetConf};
use serde::Deserialize;

use crate::name;

/// The kubelet's folder, unless `--root-dir` names another one.
pub const KUBELET: &str = "/var/lib/kubelet";
/// The socket of PodResources in this folder.
pub const SOCKET: &str = "pod-resources/kubelet.sock";
/// The kubelet has it here, also with another `--root-dir`.
const CHECKPOINT: &str = "device-plugins/kubelet_internal_checkpoint";
/// The annotation of a pod that asks for a device: a list of resource names, or `true` for all.
pub const ANNOTATION: &str = "ferrule.dev/nic";

/// A device of a resource that the kubelet has given to the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The resource's name.
    pub name: String,
    /// Which of the pod's devices it is.
    pub(super) index: usize,
    /// Whether a pod without such a device is an error.
    pub(super) is_required: bool,
    /// The device's ID, if Multus has found it.
    pub(super) given: String,
    pub(super) socket: PathBuf,
    pub(super) checkpoint: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    resource_name: String,
    index: i64,
    required: Option<Json>,
    pod_resources_socket: String,
    checkpoint: String,
    #[serde(rename = "deviceID")]
    device_id: String,
    runtime_config: Runtime,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Runtime {
    #[serde(rename = "deviceID")]
    device_id: String,
    #[serde(rename = "io.kubernetes.cri.pod-annotations")]
    annotations: BTreeMap<String, String>,
}

impl Resource {
    /// Reads the keys. `None` without `resourceName`.
    ///
    /// # Errors
    /// Code 6 if the configuration cannot be decoded, 7 if a value is invalid.
    pub fn read(config: &NetConf) -> Result<Option<Self>, CniError> {
        if !config.has_key("resourceName") {
            return Ok(None);
        }
        let keys: Keys = config.decode()?;
        let name = keys.resource_name;
        if name.is_empty() {
            return Ok(None);
        }
        name::check(&name)
            .map_err(|why| CniError::invalid_config(format!("invalid resourceName {name:?}: {why}")))?;
        let asks = |value: &String| value.split(',').map(str::trim).any(|one| one == "true" || one == name);
        let path = |key: String, place| match key.is_empty() {
            true => Path::new(KUBELET).join(place),
            false => PathBuf::from(key),
        };
        let index = usize::try_from(keys.index);
        let invalid =
            |_| CniError::invalid_config(format!("invalid index {} (must not be negative)", keys.index));
        Ok(Some(Resource {
            index: index.map_err(invalid)?,
            is_required: match required(keys.required.as_ref())? {
                Some(is_required) => is_required,
                None => keys.runtime_config.annotations.get(ANNOTATION).is_some_and(asks),
            },
            given: [keys.runtime_config.device_id, keys.device_id]
                .into_iter()
                .find(|id| !id.is_empty())
                .unwrap_or_default(),
            socket: path(keys.pod_resources_socket, SOCKET),
            checkpoint: path(keys.checkpoint, CHECKPOINT),
            name,
        }))
    }

    /// Whether ADD has attached nothing, because the pod has no such device. For CHECK.
    pub fn has_skipped(&self, call: &AddRequest<'_>) -> bool {
        let mut reported = call.prev_result.iter().flat_map(|result| result.container_interfaces());
        !self.is_required && !reported.any(|interface| interface.name == call.ifname)
    }
}

/// The result of ADD for a pod without a device: that of the plugin before this one, or an empty one.
pub fn skipped(call: &AddRequest<'_>) -> AddResult {
    call.prev_result.clone().unwrap_or_default()
}

/// `true`, `false`, or `None` for `auto`.
fn required(value: Option<&Json>) -> Result<Option<bool>, CniError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    if let Ok(is_required) = value.decode() {
        return Ok(Some(is_required));
    }
    let given = match value.decode::<String>() {
        Ok(text) if text == "auto" => return Ok(None),
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("of type {}", value.kind()),
    };
    Err(CniError::invalid_config(format!(r#"invalid required {given} (must be true, false or "auto")"#)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn read(keys: &str) -> Result<Option<Resource>, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"t"{keys}}}"#);
        Resource::read(&NetConf::parse(text.into_bytes()).unwrap())
    }

    pub(crate) fn resource(keys: &str) -> Resource {
        read(&format!(r#","resourceName":"x/nic"{keys}"#)).unwrap().unwrap()
    }

    #[test]
    fn keys() {
        assert_eq!((read("").unwrap(), read(r#","resourceName":"""#).unwrap()), (None, None));
        let defaults = resource("");
        assert_eq!((defaults.index, defaults.is_required), (0, false));
        assert_eq!(defaults.socket, Path::new("/var/lib/kubelet/pod-resources/kubelet.sock"));
        assert_eq!(
            defaults.checkpoint,
            Path::new("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
        );
        let annotated = |text| {
            format!(
                r#","runtimeConfig":{{"io.kubernetes.cri.pod-annotations":{{"ferrule.dev/nic":"{text}"}}}}"#
            )
        };
        for (keys, is_required) in [
            (r#","required":true"#.to_owned(), true),
            (r#","required":false"#.to_owned() + &annotated("true"), false),
            (r#","required":"auto""#.to_owned() + &annotated("true"), true),
            (annotated("y/sfp, x/nic"), true),
            (annotated("y/sfp"), false),
            (annotated(""), false),
        ] {
            assert_eq!(resource(&keys).is_required, is_required, "{keys}");
        }
    }

    #[test]
    fn invalid_values() {
        for (keys, code, msg) in [
            (r#","resourceName":"nic""#, 7, r#"invalid resourceName "nic": must be a domain"#),
            (
                r#","resourceName":"x/nic","required":"yes""#,
                7,
                r#"invalid required "yes" (must be true, false or "#,
            ),
            (r#","resourceName":"x/nic","required":1"#, 7, "invalid required of type number (must be"),
            (r#","resourceName":"x/nic","index":-1"#, 7, "invalid index -1 (must not be negative)"),
            (r#","resourceName":"x/nic","index":"1""#, 6, ""),
            (r#","resourceName":["x/nic"]"#, 6, ""),
            (r#","resourceName":"x/nic","checkpoint":7"#, 6, ""),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!(error.code.number(), code, "{keys}");
            assert!(error.msg.starts_with(msg), "{}", error.msg);
        }
    }
}

//! The parameters of a claim: how a device becomes an interface of the pod. Pure.
//!
//! A device class and a claim may both have parameters. Keys of the claim replace those of the class. A network configuration replaces
//! all parameters before it, and those after it replace it.

use ferrule_kubelet::claims::{Claimed, Cni, Object, Route};
use k8s_openapi::api::resource::v1::DeviceAllocationConfiguration;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The kinds of parameters.
const KINDS: &str = "nic.ferrule.dev/v1alpha1 NicConfig or cni.networking.x-k8s.io/v1alpha1 CNIConfig";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct NicConfig {
    if_name: Option<String>,
    mtu: Option<u32>,
    addresses: Vec<String>,
    routes: Vec<Route>,
    ipam: Option<Object>,
}

/// The parameters of one request.
#[derive(Debug, Default)]
pub(crate) enum Parameters {
    /// Nothing.
    #[default]
    None,
    /// Keys of `NicConfig`.
    Nic(Object),
    /// `CNIConfig`.
    Cni(Object),
}

impl Parameters {
    /// Collects the request's parameters from the configurations; later ones have precedence.
    ///
    /// # Errors
    /// A configuration for our driver is of an unknown kind.
    pub(crate) fn collect(
        configs: &[DeviceAllocationConfiguration],
        driver: &str,
        request: &str,
    ) -> Result<Parameters, String> {
        let mut parameters = Parameters::None;
        for config in configs.iter().filter(|config| concerns(config.requests.as_deref(), request)) {
            let Some(opaque) = config.opaque.as_ref().filter(|opaque| opaque.driver == driver) else {
                continue;
            };
            let mut keys = match &opaque.parameters.0 {
                Value::Object(keys) => keys.clone(),
                other => return Err(format!("the parameters are no object: {}", short(other))),
            };
            let (version, kind) = (keys.remove("apiVersion"), keys.remove("kind"));
            let text =
                |value: &Option<Value>| value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
            parameters = match (text(&version).as_str(), text(&kind).as_str(), parameters) {
                ("nic.ferrule.dev/v1alpha1", "NicConfig", Parameters::Nic(mut all)) => {
                    all.append(&mut keys);
                    Parameters::Nic(all)
                }
                ("nic.ferrule.dev/v1alpha1", "NicConfig", _) => Parameters::Nic(keys),
                ("cni.networking.x-k8s.io/v1alpha1", "CNIConfig" | "CNI", _) => Parameters::Cni(keys),
                (version, kind, _) => {
                    return Err(format!("the parameters are {version:?} {kind:?}, not {KINDS}"));
                }
            };
        }
        Ok(parameters)
    }

    /// Puts them into the device's entry of the record, which is checked later.
    ///
    /// # Errors
    /// A key is unknown or has a wrong type.
    pub(crate) fn apply(self, claimed: &mut Claimed) -> Result<(), String> {
        match self {
            Parameters::None => {}
            Parameters::Cni(keys) => claimed.cni = Some(decode::<Cni>(keys)?),
            Parameters::Nic(keys) => {
                let NicConfig { if_name, mtu, addresses, routes, ipam } = decode(keys)?;
                (claimed.if_name, claimed.mtu, claimed.addresses) = (if_name, mtu, addresses);
                (claimed.routes, claimed.ipam) = (routes, ipam);
            }
        }
        Ok(())
    }
}

/// Whether a configuration for these requests is for this one, which may be `NAME/SUBREQUEST`. An empty list means all.
fn concerns(requests: Option<&[String]>, request: &str) -> bool {
    let main = request.split('/').next().unwrap_or(request);
    requests.is_none_or(|requests| {
        requests.is_empty() || requests.iter().any(|one| one == request || one == main)
    })
}

fn decode<T: DeserializeOwned>(keys: Object) -> Result<T, String> {
    serde_path_to_error::deserialize(Value::Object(keys)).map_err(|error| format!("the parameters: {error}"))
}

/// The beginning of a value, for an error.
fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

//! The fields of NetworkPolicies, Namespaces and Pods that matter. The parser drops all others. Pure.

mod head;
mod namespace;
mod pod;
mod policy;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::policy::objects::{Kind, Told};

pub(super) use head::Head;
pub(super) use namespace::Namespace;
pub(super) use pod::Pod;
pub(super) use policy::Policy;

/// The most bytes of an object's labels. With the largest ones that Kubernetes allows it could fill the memory of all nodes.
const MAX_LABELS: usize = 16 << 10;

/// An object as it comes from the API server.
pub(super) trait Read: DeserializeOwned {
    const KIND: Kind;
    /// The path of all of its objects.
    const PATH: &'static str;
    /// A list costs the API server this many times as much as one of nodes.
    const COST: u32;

    fn metadata(&self) -> &Metadata;

    /// The message about it. `node`: this node's name.
    ///
    /// # Errors
    /// It is too large, and why.
    fn told(self, node: &str) -> Result<Told, String>;
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default)]
    uid: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<Annotations>,
}

/// The annotations that matter.
#[derive(Debug, Default, Deserialize)]
struct Annotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror_of: Option<String>,
    /// [`ferrule_node_policy::model::MODE_ANNOTATION`]
    #[serde(rename = "ferrule.dev/policy")]
    mode: Option<String>,
}

/// The labels of an object.
fn labels(labels: Option<BTreeMap<String, String>>) -> Result<BTreeMap<String, String>, String> {
    let labels = labels.unwrap_or_default();
    let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_LABELS { Err(format!("its labels have {bytes} bytes")) } else { Ok(labels) }
}

//! The fields of NetworkPolicies, ClusterNetworkPolicies, Namespaces and Pods that matter. The parser drops all others. Pure.

mod cluster_policy;
mod head;
mod namespace;
mod pod;
mod policy;
mod selector;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::policy::objects::{Kind, Told};

pub(super) use cluster_policy::ClusterPolicy;
pub(super) use head::Head;
pub(super) use namespace::Namespace;
pub(super) use pod::Pod;
pub(super) use policy::Policy;

/// The most bytes of an object's labels. With the largest ones that Kubernetes allows it could fill the memory of all nodes.
const MAX_LABELS: usize = 16 << 10;
/// The most peers, ports, labels, values and exceptions of one policy. The compiler takes the first 10,000 pairs of a peer and a
/// port.
const MAX_PARTS: usize = 50_000;

/// An object as it comes from the API server.
pub(super) trait Read: DeserializeOwned {
    const KIND: Kind;
    /// The path of all of its objects.
    const PATH: &'static str;
    /// A list costs the API server this many times as much as one of nodes.
    const COST: u32;
    /// The name of the CRD, of a kind that a cluster may lack.
    const CRD: Option<&'static str> = None;

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

fn bounded(parts: usize) -> Result<(), String> {
    if parts > MAX_PARTS { Err(format!("it has {parts} parts, {MAX_PARTS} are the most")) } else { Ok(()) }
}

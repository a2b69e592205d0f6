//! The objects of the API server. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ferrule_blocks::block::{Block, Size};
use ferrule_blocks::ledger::Claim;
use ferrule_blocks::range::Fixed;
use serde::Deserialize;
use serde_json::{Value, json};

/// The group and the version.
pub(super) const API: &str = "ferrule.dev/v1alpha1";
/// The label with the domain's name.
pub(super) const DOMAIN: &str = "ferrule.dev/domain";
/// The label with the identifier of the folder of ledgers.
pub(super) const STORE: &str = "ferrule.dev/store";

/// The annotation with [`Claim::boot`].
pub(super) const BOOT: &str = "ferrule.dev/boot";

/// A list, or a part of it.
#[derive(Debug, Deserialize)]
pub(super) struct Page<T> {
    pub(super) metadata: PageMetadata,
    pub(super) items: Vec<T>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PageMetadata {
    #[serde(default)]
    pub(super) r#continue: Option<String>,
}

/// An AddressBlock, as anybody may have written it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Object {
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Spec {
    domain: String,
    first: IpAddr,
    size: Size,
    node: String,
    machine: String,
    store: String,
    network: String,
    slot: u32,
}

impl Object {
    /// The claim; `None` if name and content of the object contradict each other. One that names the folder of the reader and another
    /// node is foreign: it has no store. The policies let its node change and delete it, and not the reader's.
    pub(super) fn claim(self, domain: &str, reader: &Claimant) -> Option<Claim> {
        let spec: Spec = serde_json::from_value(self.spec).ok()?;
        let block = Block { first: spec.first, size: spec.size };
        let is_valid =
            spec.domain == domain && block.is_aligned() && block.name(domain) == self.metadata.name;
        let Metadata { uid, resource_version: version, mut annotations, .. } = self.metadata;
        let boot = annotations.remove(BOOT).unwrap_or_default();
        let Spec { node, machine, mut store, network, slot, .. } = spec;
        if store == reader.store && node != reader.node {
            store.clear();
        }
        is_valid.then_some(Claim { block, uid, version, node, machine, store, network, boot, slot })
    }
}

/// Who claims.
#[derive(Clone, Debug)]
pub(super) struct Claimant {
    /// The name of this node.
    pub(super) node: String,
    /// A hash of the machine's identifiers.
    pub(super) machine: String,
    /// The identifier of the folder of ledgers.
    pub(super) store: String,
    /// The identifier of this boot.
    pub(super) boot: String,
}

/// The object that is the claim of a block.
pub(super) fn block(block: Block, domain: &str, network: &str, slot: u32, claimant: &Claimant) -> Value {
    let Claimant { node, machine, store, boot } = claimant;
    json!({
        "apiVersion": API,
        "kind": "AddressBlock",
        "metadata": { "name": block.name(domain), "labels": { DOMAIN: domain, STORE: store }, "annotations": { BOOT: boot } },
        "spec": { "domain": domain, "first": block.first, "size": block.size, "node": node, "machine": machine, "store": store, "network": network, "slot": slot },
    })
}

/// An AddressDomain.
#[derive(Debug, Deserialize)]
pub(super) struct Domain {
    metadata: Metadata,
    spec: DomainSpec,
}

#[derive(Debug, Deserialize)]
struct DomainSpec {
    ranges: Vec<Fixed>,
}

impl Domain {
    pub(super) fn ranges(&self) -> &[Fixed] {
        &self.spec.ranges
    }

    pub(super) fn uid(&self) -> &str {
        &self.metadata.uid
    }

    pub(super) fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// The object of a domain. `version`: the one that it replaces.
pub(super) fn domain(name: &str, ranges: &[Fixed], version: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": API,
        "kind": "AddressDomain",
        "metadata": { "name": name },
        "spec": { "ranges": ranges },
    });
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = version.into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_back_and_others_are_none() {
        let [node, machine, store, boot] = ["n", "m", "s", "b"].map(str::to_owned);
        let claimant = Claimant { node, machine, store, boot };
        let one = Block::of("10.0.0.40".parse().unwrap(), 8.try_into().unwrap());
        let mut object = block(one, "lan", "net", 7, &claimant);
        object["metadata"]["uid"] = "u".into();
        object["metadata"]["resourceVersion"] = "7".into();
        let read = |object: &Value| {
            serde_json::from_value::<Object>(object.clone()).unwrap().claim("lan", &claimant)
        };
        let claim = read(&object).unwrap();
        assert_eq!((claim.block, &*claim.uid, &*claim.version, &*claim.store), (one, "u", "7", "s"));
        assert_eq!((&*claim.machine, &*claim.boot), ("m", "b"));
        let mut forged = object.clone();
        forged["spec"]["node"] = "other".into();
        let forged = read(&forged).unwrap();
        assert_eq!((&*forged.node, &*forged.store), ("other", ""));
        for (key, value) in [
            ("first", json!("10.0.0.48")),
            ("first", json!("10.0.0.41")),
            ("first", json!("fd00::")),
            ("size", json!(3)),
            ("domain", json!("other")),
            ("node", json!(7)),
        ] {
            let mut other = object.clone();
            other["spec"][key] = value;
            assert_eq!(read(&other), None, "{other}");
        }
    }
}

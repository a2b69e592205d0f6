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
    #[serde(default)]
    deletion_timestamp: Option<String>,
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
    /// The claim; `None` if the object has no name of a block. One whose name and content contradict each other has the address that it is
    /// named after: no other object can have this name. It is foreign: it has no store. So is one that names the folder of the reader and
    /// another node: the policies let that node change and delete it, and not the reader's. So is one that waits for its finalizers: it ends
    /// at any time.
    pub(super) fn claim(self, domain: &str, reader: &Claimant) -> Option<Claim> {
        let Metadata { name, uid, resource_version: version, mut annotations, deletion_timestamp } =
            self.metadata;
        let boot = annotations.remove(BOOT).unwrap_or_default();
        let node = self.spec["node"].as_str().unwrap_or_default().to_owned();
        let slot = self.spec["slot"].as_u64().and_then(|slot| slot.try_into().ok()).unwrap_or_default();
        let valid = serde_json::from_value(self.spec).ok().and_then(|spec: Spec| {
            let block = Block { first: spec.first, size: spec.size };
            (spec.domain == domain && block.is_aligned() && block.name(domain) == name)
                .then_some((block, spec))
        });
        let Some((block, spec)) = valid else {
            let block = Block { first: Block::first_of(&name, domain)?, size: Size::ONE };
            let [machine, store, network] = Default::default();
            return Some(Claim { block, uid, version, node, machine, store, network, boot, slot });
        };
        let Spec { node, machine, mut store, network, slot, .. } = spec;
        if store == reader.store && node != reader.node || deletion_timestamp.is_some() {
            store.clear();
        }
        Some(Claim { block, uid, version, node, machine, store, network, boot, slot })
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
        "metadata": { "name": block.name(domain), "annotations": { BOOT: boot } },
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
    ranges: Vec<Value>,
}

impl Domain {
    /// Its ranges, without those that cannot be read: the token of one node is enough to add them.
    pub(super) fn ranges(&self) -> Vec<Fixed> {
        let ranges = self.spec.ranges.iter().filter_map(|range| Fixed::deserialize(range).ok());
        ranges.filter(|range| range.check().is_ok()).collect()
    }

    pub(super) fn uid(&self) -> &str {
        &self.metadata.uid
    }

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// The object of a domain with the ranges of its former one, and more.
pub(super) fn domain(name: &str, former: Option<&Domain>, more: &[Fixed]) -> Value {
    let known = former.into_iter().flat_map(|former| former.spec.ranges.iter().cloned());
    let ranges: Vec<Value> = known.chain(more.iter().map(|range| json!(range))).collect();
    let mut object = json!({
        "apiVersion": API,
        "kind": "AddressDomain",
        "metadata": { "name": name },
        "spec": { "ranges": ranges },
    });
    if let Some(former) = former {
        object["metadata"]["resourceVersion"] = former.version().into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_back_and_others_are_foreign() {
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
        let mut ending = object.clone();
        ending["metadata"]["deletionTimestamp"] = "2026-11-29T07:00:00Z".into();
        assert_eq!(read(&ending), Some(Claim { store: String::new(), ..claim }));
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
            let odd = read(&other).unwrap();
            assert_eq!((odd.block, &*odd.store), (Block { size: Size::ONE, ..one }, ""), "{other}");
            other["metadata"]["name"] = "lan.nonsense".into();
            assert_eq!(read(&other), None, "{other}");
        }
    }
}

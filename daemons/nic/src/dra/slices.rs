//! The steps from the node's ResourceSlices in the API server to the wanted ones. Pure.

use k8s_openapi::api::resource::v1::{Device, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sha2::{Digest as _, Sha256};

use crate::plan::Nic;

/// The most devices of a slice.
const MOST: usize = 128;
/// The most devices of a slice if one of them has a taint.
const MOST_WITH_TAINTS: usize = 64;
/// The most bytes of the name of an object.
const MAX_NAME: usize = 253;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) driver: String,
    /// The node's name, which is also the pool's.
    pub(crate) node: String,
    pub(crate) uid: String,
}

/// A change of one slice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Create(ResourceSlice),
    Replace(ResourceSlice),
    Delete(String),
}

/// The devices for each slice. An unhealthy one gets a taint, so that the scheduler does not choose it; if the API server drops
/// taints, it is left out.
pub(crate) fn chunks(driver: &str, nics: &[Nic], has_taints: bool) -> Vec<Vec<Device>> {
    let shown = nics.iter().filter(|nic| has_taints || nic.problem.is_none());
    let devices: Vec<Device> = shown
        .map(|nic| Device {
            name: nic.name.clone(),
            attributes: Some(nic.attributes.clone()),
            taints: nic.problem.as_ref().map(|_| vec![unhealthy(driver)]),
            ..Device::default()
        })
        .collect();
    let most = if devices.iter().any(is_tainted) { MOST_WITH_TAINTS } else { MOST };
    devices.chunks(most).map(<[Device]>::to_vec).collect()
}

pub(crate) fn is_tainted(device: &Device) -> bool {
    device.taints.as_ref().is_some_and(|taints| !taints.is_empty())
}

fn unhealthy(driver: &str) -> DeviceTaint {
    DeviceTaint {
        key: format!("{driver}/unhealthy"),
        effect: "NoSchedule".to_owned(),
        ..DeviceTaint::default()
    }
}

/// The steps from the existing slices of this owner to those with these devices. A change of one slice raises the generation of all:
/// the scheduler ignores older ones, and waits until the pool is complete.
pub(crate) fn steps(owner: &Owner, chunks: &[Vec<Device>], existing: &[ResourceSlice]) -> Vec<Step> {
    let count = i64::try_from(chunks.len()).unwrap_or(i64::MAX);
    let newest = existing.iter().map(|slice| slice.spec.pool.generation).max();
    let find = |name: &str| existing.iter().find(|slice| slice.metadata.name.as_deref() == Some(name));
    let slice = |(number, devices): (usize, &Vec<Device>), generation| {
        let name = slice_name(owner, number);
        let version = find(&name).and_then(|slice| slice.metadata.resource_version.clone());
        let node = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: owner.node.clone(),
            uid: owner.uid.clone(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name),
                resource_version: version,
                owner_references: Some(vec![node]),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: owner.driver.clone(),
                node_name: Some(owner.node.clone()),
                pool: ResourcePool { name: owner.node.clone(), generation, resource_slice_count: count },
                devices: Some(devices.clone()),
                ..ResourceSliceSpec::default()
            },
        }
    };
    let wanted = |generation| chunks.iter().enumerate().map(move |chunk| slice(chunk, generation));
    let is_same = |wanted: ResourceSlice| {
        let name = wanted.metadata.name.as_deref().unwrap_or_default();
        find(name).is_some_and(|slice| comparable(&slice.spec) == comparable(&wanted.spec))
    };
    let surplus = existing.len() != chunks.len();
    if !surplus && wanted(newest.unwrap_or_default()).all(is_same) {
        return Vec::new();
    }
    let generation = newest.map_or(1, |newest| newest.saturating_add(1));
    let write = |slice: ResourceSlice| match slice.metadata.resource_version {
        None => Step::Create(slice),
        Some(_) => Step::Replace(slice),
    };
    let mut steps: Vec<Step> = wanted(generation).map(write).collect();
    let names: Vec<String> = (0..chunks.len()).map(|number| slice_name(owner, number)).collect();
    let others = existing.iter().filter_map(|slice| slice.metadata.name.clone());
    steps.extend(others.filter(|name| !names.contains(name)).map(Step::Delete));
    steps
}

/// The spec without what the API server adds.
fn comparable(spec: &ResourceSliceSpec) -> ResourceSliceSpec {
    let mut spec = spec.clone();
    for taint in spec.devices.iter_mut().flatten().flat_map(|device| device.taints.iter_mut().flatten()) {
        taint.time_added = None;
    }
    spec
}

/// The name of a slice: the same in each process, so that two instances of the driver do not make two pools.
fn slice_name(owner: &Owner, number: usize) -> String {
    let Owner { node, driver, .. } = owner;
    let name = format!("{node}-{driver}-{number}");
    if name.len() <= MAX_NAME {
        return name;
    }
    let hash: String = Sha256::digest(node).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{hash}-{driver}-{number}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn owner() -> Owner {
        Owner { driver: "nic.ferrule.dev".to_owned(), node: "n1".to_owned(), uid: "u".to_owned() }
    }

    fn nics(count: usize) -> Vec<Nic> {
        let nic = |number| Nic {
            name: format!("eth{number}"),
            problem: None,
            link: ferrule_kubelet::claims::Link::default(),
            attributes: BTreeMap::new(),
        };
        (0..count).map(nic).collect()
    }

    /// Does the steps as the API server does.
    fn apply(slices: &mut Vec<ResourceSlice>, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Create(mut slice) => {
                    slice.metadata.resource_version = Some("1".to_owned());
                    slices.push(slice);
                }
                Step::Replace(slice) => {
                    let old = slices.iter_mut().find(|old| old.metadata.name == slice.metadata.name);
                    *old.unwrap() = slice;
                }
                Step::Delete(name) => slices.retain(|slice| slice.metadata.name.as_ref() != Some(&name)),
            }
        }
    }

    fn pool(slices: &[ResourceSlice]) -> Vec<(usize, i64, i64)> {
        let spec = |slice: &ResourceSlice| {
            let pool = &slice.spec.pool;
            (slice.spec.devices.as_ref().unwrap().len(), pool.generation, pool.resource_slice_count)
        };
        slices.iter().map(spec).collect()
    }

    #[test]
    fn a_pool_grows_changes_and_shrinks() {
        let (owner, mut slices) = (owner(), Vec::new());
        let mut sync = |nics: &[Nic]| {
            let chunks = chunks(&owner.driver, nics, true);
            let todo = steps(&owner, &chunks, &slices);
            apply(&mut slices, todo);
            assert_eq!(steps(&owner, &chunks, &slices), [], "a second pass has something to do");
            pool(&slices)
        };
        assert_eq!(sync(&nics(0)), []);
        assert_eq!(sync(&nics(128)), [(128, 1, 1)]);
        assert_eq!(sync(&nics(129)), [(128, 2, 2), (1, 2, 2)]);
        let mut changed = nics(129);
        changed[128].problem = Some("no carrier".to_owned());
        assert_eq!(sync(&changed), [(64, 3, 3), (64, 3, 3), (1, 3, 3)]);
        assert_eq!(sync(&nics(3)), [(3, 4, 1)]);
        assert_eq!(sync(&nics(0)), []);
    }

    #[test]
    fn a_deleted_slice_comes_back_with_a_newer_generation() {
        let owner = owner();
        let chunks = chunks(&owner.driver, &nics(130), true);
        let mut slices = Vec::new();
        apply(&mut slices, steps(&owner, &chunks, &[]));
        slices.remove(0);
        let todo = steps(&owner, &chunks, &slices);
        apply(&mut slices, todo);
        let mut pool = pool(&slices);
        pool.sort_unstable();
        assert_eq!(pool, [(2, 2, 2), (128, 2, 2)]);
    }

    #[test]
    fn fields_that_the_server_adds_are_no_change() {
        let owner = owner();
        let mut nics = nics(2);
        nics[1].problem = Some("no carrier".to_owned());
        let chunks = chunks(&owner.driver, &nics, true);
        let mut slices = Vec::new();
        apply(&mut slices, steps(&owner, &chunks, &[]));
        let taint = &mut slices[0].spec.devices.as_mut().unwrap()[1].taints.as_mut().unwrap()[0];
        assert_eq!((taint.key.as_str(), taint.effect.as_str()), ("nic.ferrule.dev/unhealthy", "NoSchedule"));
        taint.time_added = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Default::default()));
        assert_eq!(steps(&owner, &chunks, &slices), []);
        assert_eq!(super::chunks(&owner.driver, &nics, false)[0].len(), 1, "left out without taints");
        slices[0].spec.node_name = None;
        assert_eq!(steps(&owner, &chunks, &slices).len(), 1, "another client has changed it");
    }

    #[test]
    fn names_have_a_limit() {
        let mut owner = owner();
        assert_eq!(slice_name(&owner, 7), "n1-nic.ferrule.dev-7");
        owner.node = "n".repeat(253);
        assert!(slice_name(&owner, 7).len() <= MAX_NAME);
    }
}

//! Which device a pod has, from the kubelet's answers. Pure.

use super::message::Pod;

/// The IDs of the devices of this resource that the pod has; of all its containers, unsorted and perhaps twice. `None` if
/// several pods have the name: a static pod that ends, and its successor, which only the checkpoint tells apart.
pub fn ids<'a>(pods: &[Pod<'a>], namespace: &str, name: &str, resource: &str) -> Option<Vec<&'a str>> {
    let mut found = pods.iter().filter(|pod| pod.name == name && pod.namespace == namespace);
    let pod = found.next();
    if found.next().is_some() {
        return None;
    }
    let devices = pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|container| &container.devices);
    Some(devices.filter(|one| one.resource == resource).flat_map(|one| one.ids.iter().copied()).collect())
}

/// The ID with this index, in the order of Multus: that of the texts, without duplicates. The kubelet lists a device of two
/// NUMA nodes twice.
pub fn pick<T: Ord>(mut ids: Vec<T>, index: usize) -> Option<T> {
    ids.sort();
    ids.dedup();
    ids.into_iter().nth(index)
}

#[cfg(test)]
mod tests {
    use super::super::message::{Container, Devices};
    use super::*;

    fn pod<'a>(namespace: &'a str, name: &'a str, devices: &[(&'a str, &[&'a str])]) -> Pod<'a> {
        // One container for each entry.
        let container = |(resource, ids): &(&'a str, &[&'a str])| Container {
            name: "c",
            devices: vec![Devices { resource, ids: ids.to_vec() }],
        };
        Pod { name, namespace, containers: devices.iter().map(container).collect() }
    }

    #[test]
    fn devices_of_one_pod_in_the_order_of_multus() {
        let pods = [
            pod(
                "shop",
                "web",
                &[("x/nic", &["eth2", "eth10"]), ("x/sfp", &["sf0"]), ("x/nic", &["eth10", "eth1"])],
            ),
            pod("other", "web", &[("x/nic", &["eth9"])]),
        ];
        let found = ids(&pods, "shop", "web", "x/nic").unwrap();
        let picked: Vec<_> = (0..4).map(|index| pick(found.clone(), index)).collect();
        assert_eq!(picked, [Some("eth1"), Some("eth10"), Some("eth2"), None]);
        assert_eq!(ids(&pods, "other", "web", "x/nic"), Some(vec!["eth9"]));
        assert_eq!(ids(&pods, "shop", "db", "x/nic"), Some(vec![]));
    }

    #[test]
    fn two_pods_of_one_name_are_not_told_apart() {
        let pods = [pod("shop", "web", &[]), pod("shop", "web", &[("x/nic", &["eth1"])])];
        assert_eq!(ids(&pods, "shop", "web", "x/nic"), None);
    }
}
